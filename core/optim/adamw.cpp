#include "core/optim/adamw.h"

#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <optional>

#include "core/base/error.h"
#include "core/kernels/kernels.h"

namespace pptrain::optim {
namespace {

std::vector<int64_t> parameter_offsets(const nn::ParameterStore& store) {
  std::vector<int64_t> offsets;
  for (const nn::Weight& weight : store.weights()) {
    int64_t offset = weight.offset;
    for (size_t i = 0; i < weight.parts; ++i) {
      offsets.push_back(offset);
      offset += store.parameters()[weight.first_parameter + i].master.numel();
    }
  }
  return offsets;
}

}  // namespace

AdamW::AdamW(nn::ParameterStore& store, const config::OptimizerSection& options)
    : store_(store),
      eps_(options.eps),
      weight_decay_(options.weight_decay),
      offsets_(parameter_offsets(store)) {
  if (options.betas.size() != 2) {
    throw Error(fmt::format("adamw needs two betas, not {}", options.betas.size()));
  }
  if (!store.materialised() || !store.flat_grad().defined()) {
    throw Error("adamw needs a parameter store that was materialised with gradients");
  }
  beta1_ = options.betas[0];
  beta2_ = options.betas[1];
  const auto parameters = store.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool decay = parameters[i].spec.weight_decay;
    if (runs_.empty() || runs_.back().decay != decay) {
      runs_.push_back({.offset = offsets_[i], .size = 0, .decay = decay});
    }
    runs_.back().size = offsets_[i] + parameters[i].master.numel() - runs_.back().offset;
  }
  exp_avg_ = at::zeros_like(store.flat_master());
  exp_avg_sq_ = at::zeros_like(store.flat_master());
}

void AdamW::step(double lr, double grad_scale) {
  ++steps_;
  const bool keep = previous_[0].defined();
  const bool separate_compute = store_.compute_dtype() != at::kFloat;
  for (const Run& run : runs_) {
    const auto slice = [&](const at::Tensor& flat) { return flat.narrow(0, run.offset, run.size); };
    at::Tensor weight = slice(store_.flat_master());
    at::Tensor exp_avg = slice(exp_avg_);
    at::Tensor exp_avg_sq = slice(exp_avg_sq_);
    const auto compute = separate_compute ? std::optional(slice(store_.flat_compute())) : std::nullopt;
    std::optional<kernels::AdamWPrevious> previous;
    if (keep) previous = {slice(previous_[0]), slice(previous_[1]), slice(previous_[2])};
    kernels::adamw(weight, slice(store_.flat_grad()), exp_avg, exp_avg_sq, compute,
                   {.lr = lr,
                    .beta1 = beta1_,
                    .beta2 = beta2_,
                    .eps = eps_,
                    .weight_decay = run.decay ? weight_decay_ : 0,
                    .grad_scale = grad_scale,
                    .step = steps_},
                   previous);
  }
  can_undo_ = keep;
}

void AdamW::keep_previous() {
  const auto now = changing();
  for (size_t i = 0; i < now.size(); ++i) {
    if (!previous_[i].defined()) previous_[i] = at::zeros_like(now[i]);  // gaps between runs stay zero
  }
}

void AdamW::undo() {
  if (!can_undo_) throw Error("adamw: there is no step to take back, or it was not kept");
  const auto now = changing();
  for (size_t i = 0; i < now.size(); ++i) now[i].copy_(previous_[i]);
  store_.refresh_compute();
  --steps_;
  can_undo_ = false;
}

std::vector<StateTensor> AdamW::state() {
  std::vector<StateTensor> result;
  const auto parameters = store_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const nn::Parameter& parameter = parameters[i];
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, offsets_[i], parameter.master.numel()).view(parameter.master.sizes());
    };
    result.push_back({.file = "adamw.exp_avg", .parameter = &parameter, .tensor = view(exp_avg_)});
    result.push_back({.file = "adamw.exp_avg_sq", .parameter = &parameter, .tensor = view(exp_avg_sq_)});
  }
  return result;
}

}  // namespace pptrain::optim

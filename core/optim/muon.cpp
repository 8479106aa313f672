#include "core/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/kernels/optimizers.h"
#include "core/optim/newton_schulz.h"

namespace pptrain::optim {
namespace {

struct Part {
  const Run* run;
  const nn::Slice* slice;

  at::Tensor of(const at::Tensor& flat) const { return run->part(flat, *slice); }
};

std::vector<Part> parts_of(std::span<const Run> runs) {
  std::vector<Part> parts;
  for (const Run& run : runs) {
    for (const nn::Slice& slice : run.slices) parts.push_back({&run, &slice});
  }
  return parts;
}

void apply(const Part& part, const at::Tensor& direction, double learning_rate) {
  const Run& run = *part.run;
  const double lr = learning_rate * run.lr_scale;
  const auto longer = static_cast<double>(std::ranges::max(part.slice->spec.shape));
  at::Tensor master = part.of(run.now.master);
  std::optional<at::Tensor> compute;
  if (run.compute) compute = part.of(*run.compute);
  kernels::descend(master, direction, compute,
                   {.decay = 1 - lr * run.weight_decay, .step = lr * 0.2 * std::sqrt(longer)});
}

}  // namespace

Muon::Muon(const config::OptimizerSection& options, MakeMatrixExchange make_exchange,
           const at::TensorOptions& tensors)
    : momentum_(options.muon_momentum), make_exchange_(std::move(make_exchange)), tensors_(tensors) {}

void Muon::prepare(const std::vector<const nn::Slice*>& slices) {
  std::vector<MatrixPart> parts;
  for (const nn::Slice* slice : slices) parts.push_back({slice->spec.name, slice->shape});
  exchange_ =
      make_exchange_ ? make_exchange_(std::move(parts)) : std::make_unique<LocalMatrices>(std::move(parts));
}

void Muon::step(std::span<Run> runs, const StepArguments& arguments) {
  const kernels::MomentumArgs momentum{.beta = momentum_, .grad_scale = arguments.grad_scale};
  for (Run& run : runs) kernels::momentum(run.now.state[0], run.grad, run.now.state[0], momentum);
  const std::vector<Part> parts = parts_of(runs);
  exchange_->run(tensors_,
                 {.read =
                      [&](size_t i, at::Tensor& to) {
                        const Run& run = *parts[i].run;
                        kernels::momentum(parts[i].of(run.now.state[0]), parts[i].of(run.grad), to, momentum);
                      },
                  .transform = orthogonalise,
                  .write = [&](size_t i, const at::Tensor& from) { apply(parts[i], from, arguments.lr); }});
}

}  // namespace pptrain::optim

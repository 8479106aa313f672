#include "test/support/torch_adamw.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

namespace pptrain::test {

TorchAdamW::TorchAdamW(const std::vector<Weight>& weights, std::pair<double, double> betas) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Weight& weight : weights) {
    auto options = std::make_unique<torch::optim::AdamWOptions>();
    options->betas({betas.first, betas.second}).eps(1e-8).weight_decay(weight.decay);
    groups.emplace_back(std::vector<at::Tensor>{weight.leaf}, std::move(options));
  }
  adamw_ = std::make_unique<torch::optim::AdamW>(groups);
}

TorchAdamW::~TorchAdamW() = default;

void TorchAdamW::step(double lr) {
  for (auto& group : adamw_->param_groups()) static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
  adamw_->step();
}

std::pair<at::Tensor, at::Tensor> TorchAdamW::moments(size_t weight) const {
  const at::Tensor& leaf = adamw_->param_groups().at(weight).params().front();
  const auto& state =
      static_cast<const torch::optim::AdamWParamState&>(*adamw_->state().at(leaf.unsafeGetTensorImpl()));
  return {state.exp_avg(), state.exp_avg_sq()};
}

}  // namespace pptrain::test

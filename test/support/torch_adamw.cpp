#include "test/support/torch_adamw.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

namespace pptrain::test {

struct TorchAdamW::Optimizer {
  std::vector<Weight> weights;
  torch::optim::AdamW adamw;
};

TorchAdamW::TorchAdamW(const std::vector<Weight>& weights, std::pair<double, double> betas) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Weight& weight : weights) {
    auto options = std::make_unique<torch::optim::AdamWOptions>();
    options->betas({betas.first, betas.second}).eps(1e-8).weight_decay(weight.decay);
    groups.emplace_back(std::vector<at::Tensor>{weight.leaf}, std::move(options));
  }
  optimizer_ = std::make_unique<Optimizer>(weights, torch::optim::AdamW(groups));
}

TorchAdamW::~TorchAdamW() = default;

void TorchAdamW::step(double lr) {
  for (auto& group : optimizer_->adamw.param_groups())
    static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
  optimizer_->adamw.step();
}

std::pair<at::Tensor, at::Tensor> TorchAdamW::moments(size_t weight) const {
  const at::Tensor& leaf = optimizer_->weights[weight].leaf;
  const auto& state = static_cast<const torch::optim::AdamWParamState&>(
      *optimizer_->adamw.state().at(leaf.unsafeGetTensorImpl()));
  return {state.exp_avg(), state.exp_avg_sq()};
}

}  // namespace pptrain::test

// Lion over a parameter group, against the paper's formula in float64.
#include <ATen/Parallel.h>

#include "core/optim/optimizer.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

TEST_CASE("Lion follows the paper's algorithm", "[optim]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const double beta1 = 0.9, beta2 = 0.99, decay = 0.3, scale = 0.5;
  nn::ParameterGroup group;
  group.add({{.name = "w", .shape = {13, 7}}});
  group.add({{.name = "norm", .shape = {70}, .role = nn::Role::norm}});
  group.materialise(at::kCPU, type);
  group.initialise(3);
  std::vector<Tensor> weights, averages;
  for (const nn::Slice* p : group.slices()) {
    weights.push_back(p->master.to(at::kDouble));
    averages.push_back(at::zeros_like(weights.back()));
  }
  config::OptimizerSection options{.name = "lion"};
  options.betas = {beta1, beta2};
  options.weight_decay = decay;
  const auto lion = optim::make_optimizer(options, group.buffers());
  at::manual_seed(test::seed(11));
  for (int step = 0; step < 6; ++step) {
    const double lr = 1e-2 / (step + 1);
    for (size_t i = 0; i < weights.size(); ++i) {
      nn::Slice& p = *group.slices()[i];
      p.grad.normal_();
      const Tensor g = p.grad.to(at::kDouble) * scale;
      const Tensor direction = (averages[i] * beta1 + g * (1 - beta1)).sign();
      weights[i] = weights[i] - lr * (direction + (p.spec.role == nn::Role::norm ? 0 : decay) * weights[i]);
      averages[i] = averages[i] * beta2 + g * (1 - beta2);
    }
    lion->step(lr, scale);
    for (size_t i = 0; i < weights.size(); ++i) {
      const nn::Slice& p = *group.slices()[i];
      // Each of six steps rounds the weight once.
      CHECK(largest((p.master.to(at::kDouble) - weights[i]) / weights[i].abs().clamp_min(1)) < 6 * 0x1p-24);
      CHECK(relative_error(lion->state()[i].tensor, averages[i]) < 1e-6);
      CHECK(same_bits(p.compute, p.master.to(p.compute.scalar_type())));
    }
  }
  CHECK(lion->state()[0].file == "lion.exp_avg");
}

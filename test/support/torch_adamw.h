// torch::optim::AdamW as an oracle. Its header takes each compilation 10 s, so one file includes it for all
// tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace torch::optim {
class AdamW;
}

namespace pptrain::test {

class TorchAdamW {
 public:
  struct Weight {
    at::Tensor leaf;  // a step reads its gradient and changes it in place
    double decay = 0;
  };
  TorchAdamW(const std::vector<Weight>& weights, std::pair<double, double> betas);
  ~TorchAdamW();
  TorchAdamW(const TorchAdamW&) = delete;
  TorchAdamW& operator=(const TorchAdamW&) = delete;

  void step(double lr);
  // exp_avg and exp_avg_sq of a weight that made a step.
  std::pair<at::Tensor, at::Tensor> moments(size_t weight) const;

 private:
  std::unique_ptr<torch::optim::AdamW> adamw_;
};

}  // namespace pptrain::test

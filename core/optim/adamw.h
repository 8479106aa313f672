// AdamW (Loshchilov & Hutter, arXiv 1711.05101) over the flat buffers of a ParameterStore.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"
#include "core/optim/optimizer.h"

namespace pptrain::optim {

// Decays only parameters whose spec says so (none of norms and biases). The state lies as the store's flat
// buffers do.
class AdamW : public Optimizer {
 public:
  // `store` must be materialised with gradients and outlive this. Takes betas, eps and weight_decay from
  // `options`. Throws Error otherwise.
  AdamW(nn::ParameterStore& store, const config::OptimizerSection& options);

  void step(double lr, double grad_scale) override;
  std::vector<StateTensor> state() override;  // files "adamw.exp_avg" and "adamw.exp_avg_sq"
  void keep_previous() override;              // 12 bytes per parameter
  void undo() override;

 private:
  // A range of the flat buffers, gaps included, that one kernel call serves.
  struct Run {
    int64_t offset;
    int64_t size;
    bool decay;
  };

  // What a step changes, in one order: masters, first and second moments.
  std::array<at::Tensor, 3> changing() const { return {store_.flat_master(), exp_avg_, exp_avg_sq_}; }

  nn::ParameterStore& store_;
  double beta1_, beta2_, eps_, weight_decay_;
  std::vector<int64_t> offsets_;  // of each parameter, in elements
  std::vector<Run> runs_;
  at::Tensor exp_avg_, exp_avg_sq_;
  std::array<at::Tensor, 3> previous_;  // of changing(); undefined unless they are kept
  bool can_undo_ = false;
};

}  // namespace pptrain::optim

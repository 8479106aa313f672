// Norms of rows with explicit passes, alone or fused with the residual addition before them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"

namespace pptrain::nn {

// rms: RMSNorm (Zhang & Sennrich, arXiv 1910.07467). rms_plus_one: the same with the factor 1 + weight, whose
// weight starts at 0 (Gemma). layer: LayerNorm with weight and bias (Ba et al., arXiv 1607.06450).
enum class NormKind { rms, rms_plus_one, layer };

// A norm's weight [dim] and its factor, float32.
ParameterSpec norm_spec(const std::string& name, int64_t dim, NormKind kind);
at::Tensor norm_factor(const Weight& weight, NormKind kind);

class Norm {
 public:
  struct Saved {
    at::Tensor x;     // T [rows, dim]: x + delta, the residual stream; x itself without delta
    at::Tensor mean;  // float32 [rows, 1], of LayerNorm
    at::Tensor rstd;  // float32 [rows], of LayerNorm [rows, 1]

    std::vector<at::Tensor> tensors() const { return {x, mean, rstd}; }  // some may be undefined
    // Frees all but x.
    void drop() { *this = {.x = x, .mean = {}, .rstd = {}}; }
  };

  // Declares `<name>.weight`, and for LayerNorm `<name>.bias`. `cut`: the ranks that shard the rows, and so
  // hold a copy each.
  Norm(ParameterGroup& group, const std::string& name, int64_t dim, NormKind kind, double eps,
       const TensorShard& cut = {});

  // T [rows, dim]. delta may be undefined. Its memory is reused for the sum: the caller gives it up.
  at::Tensor forward(const at::Tensor& x, at::Tensor delta, Saved& saved) const;

  // Gradient of the residual stream: residual_grad (may be undefined) + d norm. Adds the weight's gradient.
  // The result may take the memory of dy: the caller gives it up. residual_grad is only read (a weight
  // gradient queue may hold it).
  at::Tensor backward(const Saved& saved, const at::Tensor& dy, const at::Tensor& residual_grad);

 private:
  at::Tensor layer_forward(Saved& saved) const;  // of saved.x
  at::Tensor layer_backward(const Saved& saved, const at::Tensor& dy, const at::Tensor& residual_grad);

  NormKind kind_;
  double eps_;
  Weight* weight_;
  Weight* bias_ = nullptr;
};

}  // namespace pptrain::nn

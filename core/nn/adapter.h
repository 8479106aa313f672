// Low-rank adapters of linear layers (LoRA, Hu et al., arXiv 2106.09685).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::nn {

// y += scale (x A^T) B^T, for those parts of a linear layer's stacked outputs that have an adapter. The A of
// all parts are one GEMM, and so are the B, whose blocks of rows and columns lie among zeros.
class Adapter {
 public:
  // For those of the layer's `weights` [out, in] that group.learning() adapts, declares
  // `<part>.lora_a.weight` [rank, in] and `<part>.lora_b.weight` [out, rank] in group.adapters(). If
  // `<part>.weight` is sharded by outputs, B is sharded and A replicated on every tensor-parallel rank; if by
  // inputs, A is sharded and B replicated. A starts with standard deviation 1 / sqrt(3 in), as PyTorch's and
  // peft's uniform values have, B with zeros. Nothing if no weight is adapted.
  static std::optional<Adapter> declare(const ParameterGroup& group, std::span<const ParameterSpec> weights);

  // T [rows, in], T [rows, out], contiguous both.
  void forward(const at::Tensor& x, at::Tensor& y) const;           // y += its output
  void backward_input(const at::Tensor& dy, at::Tensor& dx) const;  // dx += its input gradient
  // Adds to the main gradients of A and B. Recomputes the inner values of forward and backward_input.
  void backward_weight(const at::Tensor& x, const at::Tensor& dy);

 private:
  struct Part {
    Weight* up;         // B: [rows of the part, rank]
    int64_t first = 0;  // of these rows in y's columns
  };

  at::Tensor down(const at::Tensor& x) const;            // scale x A^T: T [rows, parts * rank]
  at::Tensor down_gradient(const at::Tensor& dy) const;  // scale dy B, likewise
  at::Tensor up() const;                                 // T [out, parts * rank]
  at::Tensor block(const at::Tensor& all, size_t part) const;

  Weight* down_ = nullptr;  // A of all parts: [parts * rank, in]
  std::vector<Part> parts_;
  int64_t out_ = 0, rank_ = 0;
  double scale_ = 1;
};

// factor: 'a' or 'b'. "layers.3.attn.q.lora_a.weight" of "layers.3.attn.q.weight" and 'a'.
std::string adapter_weight(const std::string& weight, char factor);

// "layers.3.attn.q.weight" of "layers.3.attn.q.lora_a.weight" and "layers.3.attn.q.lora_b.weight"; nothing if
// the name is no adapter's.
std::optional<std::string> adapted_weight(std::string_view parameter);

}  // namespace pptrain::nn

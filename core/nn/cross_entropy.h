// Output projection and cross entropy in row chunks, so that the logits of a microbatch never exist at once
// (the idea of Cut Cross Entropy, arXiv 2411.09009, and Liger's fused linear cross entropy, arXiv
// 2410.10989).
#pragma once

#include <ATen/core/Tensor.h>

#include "core/nn/parameter.h"

namespace pptrain::nn {

class LinearCrossEntropy {
 public:
  // Uses `weight` [vocab, hidden], declared by the caller (it may be the embedding's, when tied, on one
  // stage). chunk_bytes bounds the memory of one chunk of logits.
  explicit LinearCrossEntropy(Weight& weight, int64_t chunk_bytes = default_chunk_bytes(at::kCPU));
  void set_chunk_bytes(int64_t bytes) { chunk_bytes_ = bytes; }

  // What serves a device: each chunk reads the weight twice and adds to its whole gradient, so chunks are as
  // large as memory allows on a GPU, and as the caches hold on a CPU.
  static int64_t default_chunk_bytes(at::DeviceType device);

  // Sum of the losses, in nats, over labels other than -100: float64 scalar tensor on the device.
  // h: T [rows, hidden]; labels: int64 [rows].
  at::Tensor forward(const at::Tensor& h, const at::Tensor& labels) const;

  // The same, and: dh (T [rows, hidden], allocated by the caller) becomes the gradient of the sum with
  // respect to h; the weight's main gradient accumulates. Both weight and input gradient are taken here,
  // while a chunk's logits exist.
  at::Tensor forward_backward(const at::Tensor& h, const at::Tensor& labels, at::Tensor& dh);

  at::Tensor logits(const at::Tensor& h) const;  // T [rows, vocab]; for generation and tests

  // Rows of a chunk, for rows of logits of `row_bytes` bytes.
  static int64_t rows_per_chunk(int64_t row_bytes, int64_t chunk_bytes);

 private:
  at::Tensor run(const at::Tensor& h, const at::Tensor& labels, at::Tensor* dh) const;

  Weight* weight_;
  int64_t chunk_bytes_;
};

}  // namespace pptrain::nn

#include "core/nn/cross_entropy.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "core/kernels/kernels.h"

namespace pptrain::nn {

LinearCrossEntropy::LinearCrossEntropy(Weight& weight, int64_t chunk_bytes)
    : weight_(&weight), chunk_bytes_(chunk_bytes) {}

int64_t LinearCrossEntropy::default_chunk_bytes(at::DeviceType device) {
  return device == at::kCUDA ? int64_t{1} << 30 : int64_t{16} << 20;
}

int64_t LinearCrossEntropy::rows_per_chunk(int64_t row_bytes, int64_t chunk_bytes) {
  constexpr int64_t kTile = 32;  // rows; matrix products prefer whole tiles
  const int64_t fit = chunk_bytes / row_bytes;
  return fit >= kTile ? fit / kTile * kTile : std::max<int64_t>(fit, 1);
}

// The chunks share one buffer of logits; the losses of all rows are kept (4 bytes a row) and summed once, so
// that the order of the sum does not depend on the size of a chunk.
at::Tensor LinearCrossEntropy::run(const at::Tensor& h, const at::Tensor& labels, at::Tensor* dh) const {
  const at::Tensor& weight = weight_->compute;
  const at::Tensor flat_labels = labels.reshape({-1});
  const int64_t rows = h.size(0);
  const int64_t step = std::min(rows, rows_per_chunk(weight.size(0) * weight.element_size(), chunk_bytes_));
  at::Tensor buffer = at::empty({step, weight.size(0)}, h.options());
  at::Tensor loss = at::empty({rows}, h.options().dtype(at::kFloat));
  for (int64_t start = 0; start < rows; start += step) {
    const int64_t n = std::min(step, rows - start);
    at::Tensor logits = buffer.narrow(0, 0, n);
    at::Tensor chunk_loss = loss.narrow(0, start, n);
    const at::Tensor chunk_h = h.narrow(0, start, n);
    kernels::linear(chunk_h, weight, std::nullopt, logits);
    kernels::cross_entropy(logits, flat_labels.narrow(0, start, n), chunk_loss, dh != nullptr);
    if (dh != nullptr) {
      at::Tensor chunk_dh = dh->narrow(0, start, n);
      kernels::matmul(logits, weight, chunk_dh);
      kernels::accumulate_weight_gradient(logits, chunk_h, weight_->grad);
    }
  }
  return loss.sum(at::kDouble);
}

at::Tensor LinearCrossEntropy::forward(const at::Tensor& h, const at::Tensor& labels) const {
  return run(h, labels, nullptr);
}

at::Tensor LinearCrossEntropy::forward_backward(const at::Tensor& h, const at::Tensor& labels,
                                                at::Tensor& dh) {
  return run(h, labels, &dh);
}

at::Tensor LinearCrossEntropy::logits(const at::Tensor& h) const {
  const at::Tensor& weight = weight_->compute;
  at::Tensor logits = at::empty({h.size(0), weight.size(0)}, h.options());
  kernels::linear(h, weight, std::nullopt, logits);
  return logits;
}

}  // namespace pptrain::nn

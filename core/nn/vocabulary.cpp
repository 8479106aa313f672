#include "core/nn/vocabulary.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

kernels::VocabularyPart held_part(const Region& region, int64_t vocab) {
  return {.first = region.cut().begin(vocab, region.cut().rank), .vocab = vocab};
}

}  // namespace

Embedding::Embedding(ParameterGroup& group, const std::string& name, int64_t vocab, int64_t dim,
                     double init_std, std::shared_ptr<const Region> region)
    : vocab_(vocab),
      dim_(dim),
      region_(std::move(region)),
      weight_(&group.add({region_->cut().cut(
          {.name = name + ".weight", .shape = {vocab, dim}, .role = Role::embedding, .init_std = init_std},
          0)})) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  at::Tensor out = at::empty({tokens.numel(), dim_}, weight_->compute.options());
  kernels::embedding(tokens, weight_->compute, held_part(*region_, vocab_), out);
  return region_->alone() ? out : region_->leave(out);
}

void Embedding::backward_weight(const at::Tensor& tokens, const at::Tensor& dy) {
  if (!learns()) return;
  kernels::embedding_backward(tokens, region_->alone() ? dy : region_->enter(dy, tokens.numel()),
                              held_part(*region_, vocab_), weight_->grad);
}

LinearCrossEntropy::LinearCrossEntropy(Weight& weight, int64_t chunk_bytes)
    : weight_(&weight), chunk_bytes_(chunk_bytes), region_(std::make_shared<Region>()) {}

LinearCrossEntropy::LinearCrossEntropy(Weight& weight, int64_t vocab, std::shared_ptr<const Region> region)
    : weight_(&weight),
      chunk_bytes_(default_chunk_bytes(at::kCPU)),
      vocab_(vocab),
      region_(std::move(region)) {}

int64_t LinearCrossEntropy::default_chunk_bytes(at::DeviceType device) {
  return device == at::kCUDA ? int64_t{1} << 30 : int64_t{16} << 20;
}

int64_t LinearCrossEntropy::rows_per_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
  constexpr int64_t kTile = 32;  // rows; matrix products prefer whole tiles
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t most = std::max<int64_t>(chunk_bytes / row_bytes, 1);
  if (rows <= most) return std::max<int64_t>(rows, 1);
  if (most < kTile) return up(rows, up(rows, most));
  const int64_t tiles = up(rows, kTile);
  return up(tiles, up(tiles, most / kTile)) * kTile;
}

// The chunks share one buffer of logits; the losses of all rows are kept (4 bytes a row) and summed once, so
// that the order of the sum does not depend on the size of a chunk.
at::Tensor LinearCrossEntropy::run_alone(const at::Tensor& h, const at::Tensor& labels,
                                         at::Tensor* dh) const {
  const at::Tensor& weight = weight_->compute;
  const at::Tensor flat_labels = labels.reshape({-1});
  const int64_t rows = h.size(0);
  const int64_t step = rows_per_chunk(rows, weight.size(0) * weight.element_size(), chunk_bytes_);
  at::Tensor buffer = at::empty({std::min(step, rows), weight.size(0)}, h.options());
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
      add_weight_gradient(*weight_, logits, chunk_h);
    }
  }
  return loss.sum(at::kDouble);
}

at::Tensor LinearCrossEntropy::chunk_loss(at::Tensor& logits, const at::Tensor& labels,
                                          bool want_gradient) const {
  const TensorCut& cut = region_->cut();
  const kernels::VocabularyPart part = held_part(*region_, vocab_);
  const int64_t rows = logits.size(0);
  const auto f32 = logits.options().dtype(at::kFloat);
  at::Tensor own = at::empty({rows, 3}, f32);
  kernels::softmax_statistics(logits, labels, part, own);
  const at::Tensor all = at::empty({cut.size * rows, 3}, f32);
  region_->gather(all, own, std::vector<int64_t>(static_cast<size_t>(cut.size), rows))->wait();
  at::Tensor loss = at::empty({rows}, f32);
  kernels::cross_entropy_part(logits, labels, all.view({cut.size, rows, 3}), part, loss, want_gradient);
  return loss;
}

// As run_alone, chunk by chunk of every rank's rows.
at::Tensor LinearCrossEntropy::run_shared(const at::Tensor& h, const at::Tensor& labels,
                                          at::Tensor* dh) const {
  const at::Tensor& weight = weight_->compute;
  const at::Tensor flat_labels = labels.reshape({-1});
  const int ranks = region_->cut().size;
  const int64_t largest = (vocab_ + ranks - 1) / ranks;  // part: all ranks must cut the same chunks
  const int64_t share = (flat_labels.size(0) + ranks - 1) / ranks;
  const int64_t step = rows_per_chunk(share, largest * weight.element_size() * ranks, chunk_bytes_);
  const RowChunks chunks(region_->cut(), flat_labels.size(0), step);
  at::Tensor buffer = at::empty({chunks.total(0), weight.size(0)}, h.options());
  at::Tensor loss = at::empty({flat_labels.size(0)}, h.options().dtype(at::kFloat));
  ChunkGather gather(*region_, chunks, h);
  std::optional<ChunkSum> sum;
  if (dh != nullptr) sum.emplace(*region_, chunks, *dh);
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    const at::Tensor rows = gather.next();
    at::Tensor logits = buffer.narrow(0, 0, rows.size(0));
    kernels::linear(rows, weight, std::nullopt, logits);
    const std::vector<RowChunks::Piece> pieces = chunks.pieces(chunk);
    std::vector<at::Tensor> own_labels;
    for (const RowChunks::Piece& piece : pieces)
      own_labels.push_back(flat_labels.narrow(0, piece.in_list, piece.rows));
    const at::Tensor losses = chunk_loss(logits, at::cat(own_labels), dh != nullptr);
    for (const RowChunks::Piece& piece : pieces)
      loss.narrow(0, piece.in_list, piece.rows).copy_(losses.narrow(0, piece.in_chunk, piece.rows));
    if (dh == nullptr) continue;
    at::Tensor partial = at::empty_like(rows);
    kernels::matmul(logits, weight, partial);
    sum->add(partial);
    add_weight_gradient(*weight_, logits, rows);
  }
  if (sum) sum->wait();
  return loss.sum(at::kDouble);
}

at::Tensor LinearCrossEntropy::run(const at::Tensor& h, const at::Tensor& labels, at::Tensor* dh) const {
  return region_->alone() ? run_alone(h, labels, dh) : run_shared(h, labels, dh);
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
  if (region_->alone()) return logits;
  return region_->enter(logits.t().contiguous(), vocab_).t().contiguous();
}

}  // namespace pptrain::nn

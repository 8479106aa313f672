// The layers at the model's two ends, whose weights have a row for each token of the vocabulary: embedding,
// and output projection with cross entropy. Tensor-parallel ranks shard the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/nn/loss_terms.h"
#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"

namespace pptrain::nn {

struct EmbeddingConfig {
  int64_t vocab = 0;
  int64_t dim = 0;
  double init_std = 0.02;
  double scale = 1;          // multiplies what tokens give
  bool round_scale = false;  // to the compute type first, as Gemma does
  int64_t positions = 0;     // rows of a table of learned positions, which are added; 0: none
};

// Token embedding. Tensor-parallel ranks shard the rows of its tables, and the rows of the result. Each
// looks up the tokens and positions that it holds; the sum over ranks rounds as on a single rank, since at
// most two terms are not zero.
class Embedding {
 public:
  // Declares `<name>.weight`, and with learned positions `<name>_positions.weight`.
  Embedding(ParameterGroup& group, const std::string& name, const EmbeddingConfig& config,
            std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());

  // tokens: int64 [tokens]; positions (read only where they are learned): int32 [tokens] -> T [share, dim].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) const;
  bool learns() const;
  // For tables that are not frozen. dy: T [share, dim].
  void backward_weight(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& dy);

  Weight& weight() { return *weight_; }

 private:
  Weight* add_table(ParameterGroup& group, const std::string& name, int64_t rows) const;
  at::Tensor look_up(const at::Tensor& ids, const Weight& table, int64_t rows) const;
  double factor() const;  // the scale, rounded if it is to be

  EmbeddingConfig config_;
  std::shared_ptr<const TensorGroup> tp_;
  Weight* weight_;
  Weight* positions_ = nullptr;
};

// Output projection and cross entropy in row chunks, so that the logits of a microbatch never exist at once
// (the idea of Cut Cross Entropy, arXiv 2411.09009, and Liger's fused linear cross entropy, arXiv
// 2410.10989).
//
// Tensor-parallel ranks shard the vocabulary and the rows of h: each has the logits of its part of the
// vocabulary for all rows of a chunk. A chunk's rows are gathered, three numbers of each row are exchanged
// (kernels::softmax_statistics), and the parts of dh are summed and scattered. Exchanging the next chunk's
// rows, and dh, overlaps with computing a chunk. [share] below is all rows on a single rank.
class LinearCrossEntropy {
 public:
  // Uses `weight`, this rank's rows of [vocab, hidden], declared by the caller (it may be the embedding's,
  // when tied, on one stage). vocab: of all ranks.
  LinearCrossEntropy(Weight& weight, int64_t vocab,
                     std::shared_ptr<const TensorGroup> tp = std::make_shared<TensorGroup>());
  // Logits x become cap * tanh(scale * x / cap) before the softmax, or scale * x if cap is 0.
  void scale_logits(double scale, double cap) {
    scale_ = scale;
    cap_ = cap;
  }
  // Bounds the memory of one chunk of logits.
  void set_chunk_bytes(int64_t bytes) { chunk_bytes_ = bytes; }
  // What forward_backward() and finish() add to the loss.
  void add_to_loss(const LossTerms& terms) { terms_ = terms; }

  // Each chunk reads the weight twice and adds to its whole gradient, so chunks are as large as memory allows
  // on a GPU, and as large as the caches hold on a CPU.
  static int64_t default_chunk_bytes(at::DeviceType device);

  // The loss of each row, in nats, 0 if the label is -100: float32 [rows], the same on every rank. h: T
  // [share, hidden]; labels: int64 [rows], of all rows.
  at::Tensor losses(const at::Tensor& h, const at::Tensor& labels) const;

  // The sum of losses(), a float64 scalar tensor on the device. dh (T [share, hidden], allocated by the
  // caller) becomes the gradient of the sum with respect to h; the weight's main gradient accumulates. Both
  // weight and input gradient are taken here, while a chunk's logits exist.
  at::Tensor forward_backward(const at::Tensor& h, const at::Tensor& labels, at::Tensor& dh);

  // --- The same in two passes, for a vocabulary that ranks outside the tensor-parallel group hold parts of
  // too: pipeline ranks.

  // This rank's weight is part `part` of `parts` of what it would hold.
  void hold_part(int part, int parts) { held_ = part_of(tp_->cut(), part, parts); }
  static TensorShard part_of(const TensorShard& cut, int part, int parts) {
    return {.rank = cut.rank * parts + part, .size = cut.size * parts};
  }

  // From statistics() to finish(): T [rows, hidden], its logits T [rows, part of the vocabulary], and with a
  // cap a copy of these.
  using Pending = std::array<at::Tensor, 3>;
  // float32 [rows, statistics_of_row()], which the ranks with the other parts need.
  int64_t statistics_of_row() const { return terms_.label_smoothing > 0 ? 4 : 3; }
  at::Tensor statistics(const at::Tensor& h, const at::Tensor& labels, Pending& pending) const;
  // all: float32 [parts, rows, statistics_of_row()], of all parts. Returns losses(); with `dh` terms are
  // added, the weight's gradient accumulates, and `dh` becomes this part's term of the gradient of h, T
  // [share, hidden].
  at::Tensor finish(Pending& pending, const at::Tensor& labels, const at::Tensor& all, at::Tensor* dh);

  // T [rows, vocab], whole on every rank, of h T [rows, hidden], which is the same on every rank; for
  // generation and tests.
  at::Tensor logits(const at::Tensor& h) const;

  // Rows of a chunk, of `rows` whose logits take `row_bytes` bytes each: the fewest chunks that fit, as equal
  // as whole tiles of rows allow, so that no small one is left at the end.
  static int64_t rows_per_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes);

 private:
  // Bytes that a chunk takes for each of `columns` logits of a row.
  int64_t row_bytes(int64_t columns) const;
  // Logits of rows of h, scaled.
  void project(const at::Tensor& h, at::Tensor& logits) const;
  // What scale_back needs of logits in addition to their gradient: undefined, or a copy.
  at::Tensor kept(const at::Tensor& logits) const;
  // The gradient of scaled logits becomes the gradient of the GEMM's result.
  void scale_back(const at::Tensor& kept, at::Tensor& dlogits) const;
  at::Tensor run(const at::Tensor& h, const at::Tensor& labels, at::Tensor* dh) const;  // as losses
  // loss: [rows of a chunk], from its logits, which become their gradient if wanted.
  void chunk_loss(at::Tensor& logits, const at::Tensor& labels, at::Tensor& loss, bool want_gradient) const;

  Weight* weight_;
  int64_t chunk_bytes_ = default_chunk_bytes(at::kCPU);
  int64_t vocab_;
  LossTerms terms_;
  std::shared_ptr<const TensorGroup> tp_;
  TensorShard held_;            // of the vocabulary
  double scale_ = 1, cap_ = 0;  // of logits
};

}  // namespace pptrain::nn

#include "core/nn/vocabulary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/kernels/cost.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

kernels::VocabularyPart held_part(const TensorShard& cut, int64_t vocab) {
  return {.first = cut.begin(vocab, cut.rank), .vocab = vocab};
}

// The float32 copy that ATen makes of other types on CPUs while it sums or multiplies, for dry runs alone.
at::Tensor copy_inside(const at::Tensor& x) {
  const bool copies = kernels::is_dry(x) && !kernels::dry_gpu().is_gpu() && x.scalar_type() != at::kFloat;
  return copies ? at::empty_like(x, at::kFloat) : at::Tensor();
}

// Where the labels of some rows are, among the `columns` logits of the part of the vocabulary that a rank
// holds.
struct Labels {
  at::Tensor valid;          // bool [rows]
  at::Tensor holds, column;  // [rows, 1]: does this rank hold the label, and its column

  Labels(kernels::VocabularyPart part, int64_t columns, const at::Tensor& labels) : valid(labels.ne(-100)) {
    const at::Tensor here = labels.sub(part.first);
    // Bitwise on bools: the logical operators know no meta tensors, which dry runs use.
    holds = here.ge(0).bitwise_and(here.lt(columns)).bitwise_and(valid).unsqueeze(1);
    column = here.clamp(0, columns - 1).unsqueeze(1);
  }
};

// Label smoothing of some rows, on top of the cross-entropy kernels. A row's loss is
// logsumexp - (1 - e) x_label - e mean(x) = the kernel's loss + e (x_label - mean(x)); its gradient is
// the kernel's + e at the label - e / vocab everywhere. Rows without a label stay 0.
class Smoothing {
 public:
  Smoothing(double fraction, kernels::VocabularyPart part, int64_t columns, const at::Tensor& labels)
      : fraction_(fraction), vocab_(static_cast<double>(part.vocab)), labels_(part, columns, labels) {}

  // float32 [rows]: this part's term of x_label - mean(x). logits: T [rows, columns].
  at::Tensor excess(const at::Tensor& logits) const {
    const at::Tensor inside = copy_inside(logits);
    const at::Tensor chosen =
        logits.gather(1, labels_.column).to(at::kFloat).masked_fill(labels_.holds.bitwise_not(), 0);
    kernels::record(kernels::moving(logits));
    return chosen.squeeze(1) - logits.sum(1, false, at::kFloat).div(vocab_);
  }

  // excess: the sum of all parts' terms. gradient: of the part's logits.
  void add_to(at::Tensor& gradient, at::Tensor& loss, const at::Tensor& excess) const {
    loss.add_(excess.masked_fill(labels_.valid.bitwise_not(), 0), fraction_);
    const at::Tensor share = labels_.valid.unsqueeze(1).to(at::kFloat).mul(fraction_);
    const at::Tensor minuend = copy_inside(gradient), difference = copy_inside(gradient);
    gradient.sub_(share.div(vocab_));
    gradient.scatter_add_(1, labels_.column,
                          labels_.holds.to(at::kFloat).mul(fraction_).to(gradient.scalar_type()));
    kernels::record(kernels::moving(gradient, gradient));
  }

 private:
  double fraction_, vocab_;
  Labels labels_;
};

// The z term of some rows, on top of the cross-entropy kernels: a row's loss gets z logsumexp^2, so its
// gradient softmax - one-hot becomes (1 + w) (softmax - one-hot) + w one-hot, w = 2 z logsumexp. Rows without
// a label stay 0. logsumexp: float32 [rows].
void add_z_term(double z, const Labels& labels, const at::Tensor& logsumexp, at::Tensor& gradient,
                at::Tensor& loss) {
  const at::Tensor own = logsumexp.masked_fill(labels.valid.bitwise_not(), 0);
  loss.add_(own.square(), z);
  const at::Tensor slope = own.mul(2 * z).unsqueeze(1);
  {
    const at::Tensor factor = copy_inside(gradient), product = copy_inside(gradient);
    gradient.mul_(slope.add(1));
  }
  gradient.scatter_add_(1, labels.column,
                        slope.masked_fill(labels.holds.bitwise_not(), 0).to(gradient.scalar_type()));
  kernels::record(kernels::moving(gradient, gradient));
}

// float32 [rows], from the statistics of all parts, float32 [parts, rows, 3].
at::Tensor logsumexp_of(const at::Tensor& statistics) {
  const at::Tensor maxima = statistics.select(2, 0), maximum = maxima.amax(0);
  return maximum + statistics.select(2, 1).mul(maxima.sub(maximum).exp()).sum(0).log();
}

// The sum over the tensor-parallel ranks, float32 [rows], in rank order.
at::Tensor sum_over(const TensorGroup& tp, const at::Tensor& own) {
  if (tp.alone()) return own;
  const int ranks = tp.cut().size;
  const at::Tensor all = at::empty({ranks * own.size(0), 1}, own.options());
  tp.gather(all, own.unsqueeze(1), std::vector<int64_t>(static_cast<size_t>(ranks), own.size(0)))();
  return all.view({ranks, own.size(0)}).sum(0);
}

}  // namespace

Weight* Embedding::add_table(ParameterGroup& group, const std::string& name, int64_t rows) const {
  return &group.add({tp_->cut().cut({.name = name + ".weight",
                                     .shape = {rows, config_.dim},
                                     .role = Role::embedding,
                                     .init_std = config_.init_std},
                                    0)});
}

Embedding::Embedding(ParameterGroup& group, const std::string& name, const EmbeddingConfig& config,
                     std::shared_ptr<const TensorGroup> tp)
    : config_(config), tp_(std::move(tp)), weight_(add_table(group, name, config.vocab)) {
  if (config.positions > 0) positions_ = add_table(group, name + "_positions", config.positions);
}

double Embedding::factor() const {
  if (!config_.round_scale || weight_->compute.scalar_type() != at::kBFloat16) return config_.scale;
  return static_cast<double>(static_cast<c10::BFloat16>(static_cast<float>(config_.scale)));
}

at::Tensor Embedding::look_up(const at::Tensor& ids, const Weight& table, int64_t rows) const {
  at::Tensor out = at::empty({ids.numel(), config_.dim}, table.compute.options());
  kernels::embedding(ids, table.compute, held_part(tp_->cut(), rows), out);
  return out;
}

at::Tensor Embedding::forward(const at::Tensor& tokens, const at::Tensor& positions) const {
  at::Tensor out = look_up(tokens, *weight_, config_.vocab);
  if (config_.scale != 1) kernels::softcap(out, factor(), 0);
  if (positions_ != nullptr) {
    const at::Tensor added = look_up(positions.to(at::kLong), *positions_, config_.positions);
    kernels::add(out, added);
  }
  return tp_->alone() ? out : tp_->leave(out);
}

bool Embedding::learns() const {
  return is_learning(weight_) || is_learning(positions_);
}

void Embedding::backward_weight(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& dy) {
  if (!learns()) return;
  at::Tensor all = tp_->alone() ? dy : tp_->enter(dy, tokens.numel());
  if (is_learning(positions_)) {
    kernels::embedding_backward(positions.to(at::kLong), all, held_part(tp_->cut(), config_.positions),
                                positions_->grad);
  }
  if (weight_->frozen()) return;
  if (config_.scale != 1) {
    all = all.clone();
    kernels::record(kernels::moving(all, all));
    kernels::softcap(all, factor(), 0);
  }
  kernels::embedding_backward(tokens, all, held_part(tp_->cut(), config_.vocab), weight_->grad);
}

LinearCrossEntropy::LinearCrossEntropy(Weight& weight, int64_t vocab, std::shared_ptr<const TensorGroup> tp)
    : weight_(&weight), vocab_(vocab), tp_(std::move(tp)), held_(tp_->cut()) {}

int64_t LinearCrossEntropy::default_chunk_bytes(at::DeviceType device) {
  return device == at::kCUDA ? int64_t{1} << 30 : int64_t{16} << 20;
}

int64_t LinearCrossEntropy::rows_per_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes) {
  constexpr int64_t kTile = 32;  // rows; GEMMs prefer whole tiles
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t most = std::max<int64_t>(chunk_bytes / row_bytes, 1);
  if (rows <= most) return std::max<int64_t>(rows, 1);
  if (most < kTile) return up(rows, up(rows, most));
  const int64_t tiles = up(rows, kTile);
  return up(tiles, up(tiles, most / kTile)) * kTile;
}

// With a cap, two copies of a chunk's logits exist.
int64_t LinearCrossEntropy::row_bytes(int64_t columns) const {
  return columns * weight_->compute.element_size() * (cap_ > 0 ? 2 : 1);
}

void LinearCrossEntropy::project(const at::Tensor& h, at::Tensor& logits) const {
  kernels::linear(h, weight_->compute, std::nullopt, logits);
  if (scale_ != 1 || cap_ > 0) kernels::softcap(logits, scale_, cap_);
}

at::Tensor LinearCrossEntropy::kept(const at::Tensor& logits) const {
  if (cap_ == 0) return {};
  kernels::record(kernels::moving(logits, logits));
  return logits.clone();
}

void LinearCrossEntropy::scale_back(const at::Tensor& kept, at::Tensor& dlogits) const {
  if (kept.defined()) {
    kernels::softcap_backward(kept, scale_, cap_, dlogits);
  } else if (scale_ != 1) {
    kernels::softcap(dlogits, scale_, 0);
  }
}

void LinearCrossEntropy::chunk_loss(at::Tensor& logits, const at::Tensor& labels, at::Tensor& loss,
                                    bool want_gradient) const {
  const TensorShard& cut = tp_->cut();
  const kernels::VocabularyPart part = held_part(cut, vocab_);
  std::optional<Smoothing> smoothing;
  at::Tensor excess, logsumexp;
  if (terms_.label_smoothing > 0 && want_gradient) {
    smoothing.emplace(terms_.label_smoothing, part, logits.size(1), labels);
    excess = sum_over(*tp_, smoothing->excess(logits));
  }
  const bool has_z = terms_.z > 0 && want_gradient;
  if (tp_->alone()) {
    if (has_z) logsumexp = logits.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1).to(at::kFloat);
    kernels::cross_entropy(logits, labels, loss, want_gradient);
    if (has_z) logsumexp.add_(loss);  // the loss is logsumexp less the label's logit
  } else {
    const int64_t rows = logits.size(0);
    at::Tensor own = at::empty({rows, 3}, loss.options());
    kernels::softmax_statistics(logits, labels, part, own);
    const at::Tensor all = at::empty({cut.size * rows, 3}, loss.options());
    tp_->gather(all, own, std::vector<int64_t>(static_cast<size_t>(cut.size), rows))();
    const at::Tensor statistics = all.view({cut.size, rows, 3});
    kernels::cross_entropy_part(logits, labels, statistics, part, loss, want_gradient);
    if (has_z) logsumexp = logsumexp_of(statistics);
  }
  if (has_z) add_z_term(terms_.z, Labels(part, logits.size(1), labels), logsumexp, logits, loss);
  if (smoothing) smoothing->add_to(logits, loss, excess);
}

// The chunks use one buffer of logits. The losses of all rows are kept (4 bytes a row) and summed once, so
// that the order of the sum does not depend on the size of a chunk.
at::Tensor LinearCrossEntropy::run(const at::Tensor& h, const at::Tensor& labels, at::Tensor* dh) const {
  const at::Tensor& weight = weight_->compute;
  const at::Tensor flat_labels = labels.reshape({-1});
  const int ranks = tp_->cut().size;
  const int64_t largest = (vocab_ + ranks - 1) / ranks;  // part: all ranks must cut the same chunks
  const int64_t share = (flat_labels.size(0) + ranks - 1) / ranks;
  const int64_t step = rows_per_chunk(share, row_bytes(largest) * ranks, chunk_bytes_);
  const RowChunks chunks(tp_->cut(), flat_labels.size(0), step);
  at::Tensor buffer = at::empty({chunks.total(0), weight.size(0)}, h.options());
  at::Tensor loss = at::empty({flat_labels.size(0)}, h.options().dtype(at::kFloat));
  ChunkGather gather(*tp_, chunks, h);
  std::optional<ChunkSum> sum;
  if (dh != nullptr && !tp_->alone()) sum.emplace(*tp_, chunks, *dh);
  for (int64_t chunk = 0; chunk < chunks.count(); ++chunk) {
    const at::Tensor rows = gather.next();
    at::Tensor logits = buffer.narrow(0, 0, rows.size(0));
    project(rows, logits);
    const at::Tensor capped = dh == nullptr ? at::Tensor() : kept(logits);
    const std::vector<ElementRun> pieces = chunks.pieces(chunk);
    const auto piece_of = [](const at::Tensor& list, const ElementRun& piece) {
      return list.narrow(0, piece.global, piece.length);
    };
    at::Tensor chunk_labels = piece_of(flat_labels, pieces[0]), losses = piece_of(loss, pieces[0]);
    if (pieces.size() > 1) {
      std::vector<at::Tensor> all;
      for (const ElementRun& piece : pieces) all.push_back(piece_of(flat_labels, piece));
      chunk_labels = at::cat(all);
      losses = at::empty({rows.size(0)}, loss.options());
    }
    chunk_loss(logits, chunk_labels, losses, dh != nullptr);
    if (pieces.size() > 1) {
      for (const ElementRun& piece : pieces)
        piece_of(loss, piece).copy_(losses.narrow(0, piece.local, piece.length));
    }
    if (dh == nullptr) continue;
    scale_back(capped, logits);
    at::Tensor partial = sum ? at::empty_like(rows) : piece_of(*dh, pieces[0]);
    kernels::matmul(logits, weight, partial);
    if (sum) sum->add(partial);
    add_weight_gradient(*weight_, logits, rows);
  }
  if (sum) sum->wait();
  return loss;
}

at::Tensor LinearCrossEntropy::statistics(const at::Tensor& h, const at::Tensor& labels,
                                          Pending& pending) const {
  const at::Tensor rows = tp_->enter(h, labels.numel());
  at::Tensor logits = at::empty({rows.size(0), weight_->compute.size(0)}, h.options());
  project(rows, logits);
  at::Tensor own = at::empty({rows.size(0), 3}, h.options().dtype(at::kFloat));
  const kernels::VocabularyPart part = held_part(held_, vocab_);
  kernels::softmax_statistics(logits, labels, part, own);
  if (terms_.label_smoothing > 0) {
    const Smoothing smoothing(terms_.label_smoothing, part, logits.size(1), labels);
    own = at::cat({own, smoothing.excess(logits).unsqueeze(1)}, 1);
  }
  pending = {rows, logits, kept(logits)};
  return own;
}

at::Tensor LinearCrossEntropy::finish(Pending& pending, const at::Tensor& labels, const at::Tensor& all,
                                      at::Tensor* dh) {
  auto& [rows, logits, capped] = pending;
  const int64_t count = rows.size(0);
  const int64_t numbers = all.size(2);
  const at::Tensor whole =
      tp_->enter(all.view({-1, numbers}), held_.size * count).view({held_.size, count, numbers});
  const at::Tensor statistics = numbers == 3 ? whole : whole.narrow(2, 0, 3).contiguous();
  const kernels::VocabularyPart part = held_part(held_, vocab_);
  at::Tensor loss = at::empty({count}, all.options());
  kernels::cross_entropy_part(logits, labels, statistics, part, loss, dh != nullptr);
  if (dh == nullptr) return loss;
  if (terms_.z > 0)
    add_z_term(terms_.z, Labels(part, logits.size(1), labels), logsumexp_of(statistics), logits, loss);
  if (terms_.label_smoothing > 0) {
    const Smoothing smoothing(terms_.label_smoothing, part, logits.size(1), labels);
    smoothing.add_to(logits, loss, whole.select(2, 3).sum(0));
  }
  scale_back(capped, logits);
  at::Tensor partial = at::empty_like(rows);
  kernels::matmul(logits, weight_->compute, partial);
  add_weight_gradient(*weight_, logits, rows);
  *dh = tp_->leave(partial);
  return loss;
}

at::Tensor LinearCrossEntropy::losses(const at::Tensor& h, const at::Tensor& labels) const {
  return run(h, labels, nullptr);
}

at::Tensor LinearCrossEntropy::forward_backward(const at::Tensor& h, const at::Tensor& labels,
                                                at::Tensor& dh) {
  return run(h, labels, &dh).sum(at::kDouble);
}

at::Tensor LinearCrossEntropy::logits(const at::Tensor& h) const {
  const at::Tensor& weight = weight_->compute;
  at::Tensor logits = at::empty({h.size(0), weight.size(0)}, h.options());
  project(h, logits);
  if (tp_->alone()) return logits;
  return tp_->enter(logits.t().contiguous(), vocab_).t().contiguous();
}

}  // namespace pptrain::nn

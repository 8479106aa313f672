// What embedding and cross entropy accept, and what they cost.
#include "core/kernels/checks.h"
#include "core/kernels/cost.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels {
namespace {

void check_part(const Checks& checks, VocabularyPart part, int64_t size) {
  checks.require(part.first >= 0 && part.first + size <= part.vocab, "the part must lie in the vocabulary");
}

void check_embedding(const Checks& checks, const Tensor& tokens, const Tensor& weight, VocabularyPart part,
                     const Tensor& out) {
  checks.dense_compute("weight", weight, 2)
      .dense("tokens", tokens, at::kLong, {tokens.numel()})
      .dense("out", out, weight.scalar_type(), {tokens.numel(), weight.size(1)});
  check_part(checks, part, weight.size(0));
}

// Bytes of the share of rows that tokens name on average.
double share_of(const Tensor& rows, int64_t size, VocabularyPart part) {
  return bytes_of(rows) * static_cast<double>(size) / static_cast<double>(part.vocab);
}

Cost cost_embedding(const Tensor& tokens, const Tensor& weight, VocabularyPart part, const Tensor& out) {
  Cost cost = moving(tokens, out);
  cost.bytes += share_of(out, weight.size(0), part);
  return cost;
}

void check_embedding_backward(const Checks& checks, const Tensor& tokens, const Tensor& dy,
                              VocabularyPart part, const Tensor& weight_grad) {
  checks.dense_compute("dy", dy, 2)
      .dense("tokens", tokens, at::kLong, {dy.size(0)})
      .require(weight_grad.dim() == 2, "weight_grad must have 2 dims")
      .dense("weight_grad", weight_grad, at::kFloat, {weight_grad.size(0), dy.size(1)});
  check_part(checks, part, weight_grad.size(0));
}

// A row of the table is read and written for each token of the part.
Cost cost_embedding_backward(const Tensor& tokens, const Tensor& dy, VocabularyPart part,
                             const Tensor& weight_grad) {
  Cost cost = moving(tokens);
  const double rows = share_of(dy, weight_grad.size(0), part);
  cost.bytes += rows + 2.0 * rows * sizeof(float) / static_cast<double>(dy.element_size());
  return cost;
}

void check_cross_entropy(const Checks& checks, const Tensor& logits, const Tensor& labels, const Tensor& loss,
                         bool) {
  checks.dense_compute("logits", logits, 2)
      .dense("labels", labels, at::kLong, {logits.size(0)})
      .dense("loss", loss, at::kFloat, {logits.size(0)});
}

Cost cost_cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss, bool want_gradient) {
  return want_gradient ? moving(logits, logits, labels, loss) : moving(logits, labels, loss);
}

void check_softmax_statistics(const Checks& checks, const Tensor& logits, const Tensor& labels,
                              VocabularyPart part, const Tensor& statistics) {
  checks.dense_compute("logits", logits, 2)
      .dense("labels", labels, at::kLong, {logits.size(0)})
      .dense("statistics", statistics, at::kFloat, {logits.size(0), 3});
  check_part(checks, part, logits.size(1));
}

Cost cost_softmax_statistics(const Tensor& logits, const Tensor& labels, VocabularyPart,
                             const Tensor& statistics) {
  return moving(logits, labels, statistics);
}

void check_cross_entropy_part(const Checks& checks, const Tensor& logits, const Tensor& labels,
                              const Tensor& statistics, VocabularyPart part, const Tensor& loss, bool) {
  checks.dense_compute("logits", logits, 2);
  const int64_t rows = logits.size(0);
  checks.dense("labels", labels, at::kLong, {rows})
      .require(statistics.dim() == 3 && statistics.size(0) > 0, "statistics must be [ranks, rows, 3]")
      .dense("statistics", statistics, at::kFloat, {statistics.size(0), rows, 3})
      .dense("loss", loss, at::kFloat, {rows});
  check_part(checks, part, logits.size(1));
}

Cost cost_cross_entropy_part(const Tensor& logits, const Tensor& labels, const Tensor& statistics,
                             VocabularyPart, const Tensor& loss, bool want_gradient) {
  Cost cost = moving(labels, statistics, loss);
  if (want_gradient) cost.bytes += 2 * bytes_of(logits);
  return cost;
}

void check_softcap(const Checks& checks, const Tensor& x, double, double cap) {
  checks.dense_compute("x", x, 2).require(cap >= 0, "cap must not be negative");
}

Cost cost_softcap(const Tensor& x, double, double) {
  return moving(x, x);
}

void check_softcap_backward(const Checks& checks, const Tensor& capped, double, double cap,
                            const Tensor& dlogits) {
  checks.dense_compute("capped", capped, 2)
      .dense("dlogits", dlogits, capped.scalar_type(), {capped.size(0), capped.size(1)})
      .require(cap > 0, "cap must be above 0");
}

Cost cost_softcap_backward(const Tensor& capped, double, double, const Tensor& dlogits) {
  return moving(capped, dlogits, dlogits);
}

}  // namespace

void add_vocabulary_contracts() {
  embedding.accept(check_embedding, cost_embedding);
  embedding_backward.accept(check_embedding_backward, cost_embedding_backward);
  cross_entropy.accept(check_cross_entropy, cost_cross_entropy);
  softmax_statistics.accept(check_softmax_statistics, cost_softmax_statistics);
  cross_entropy_part.accept(check_cross_entropy_part, cost_cross_entropy_part);
  softcap.accept(check_softcap, cost_softcap);
  softcap_backward.accept(check_softcap_backward, cost_softcap_backward);
}

}  // namespace pptrain::kernels

// Attention over documents with one mask for the whole list, with gradients by autograd. Kernels and rings
// are compared with it.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/data/tokens/segments.h"
#include "test/support/ops.h"

namespace pptrain::test {

// A model's settings of attention; sinks: float64 [heads].
struct ScoreSettings {
  std::optional<double> scale{};  // 1 / sqrt(head_dim) unless given
  double softcap = 0;
  int64_t window = 0;
  at::Tensor sinks{};
};

// bool [tokens, tokens]: true if the row's query does not see the column's key.
inline at::Tensor hidden_pairs(const tokens::Segments& segments, int64_t window = 0) {
  at::Tensor hidden = at::ones({segments.tokens(), segments.tokens()}, at::kBool);
  for (int64_t d = 0; d < segments.documents(); ++d) {
    const int64_t length = segments.length(d);
    at::Tensor seen = at::ones({length, length}, at::kBool).tril();
    if (window > 0) seen = seen.triu(1 - window);
    hidden.narrow(0, segments.first(d), length)
        .narrow(1, segments.first(d), length)
        .copy_(seen.logical_not());
  }
  return hidden;
}

// q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim] -> [tokens, heads, head_dim].
inline at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const tokens::Segments& segments, const ScoreSettings& settings = {}) {
  const auto by_head = [&](const at::Tensor& x) {
    return x.transpose(0, 1).repeat_interleave(q.size(1) / x.size(1), 0);
  };
  at::Tensor scores = by_head(q).matmul(by_head(k).transpose(1, 2)) *
                      settings.scale.value_or(1 / std::sqrt(static_cast<double>(q.size(2))));
  if (settings.softcap != 0) scores = at::tanh(scores / settings.softcap) * settings.softcap;
  scores =
      scores.masked_fill(hidden_pairs(segments, settings.window), -std::numeric_limits<double>::infinity());
  if (settings.sinks.defined()) {
    const at::Tensor column = settings.sinks.view({-1, 1, 1}).expand({q.size(1), q.size(0), 1});
    scores = test::cat({scores, column}, -1);
  }
  return at::softmax(scores, -1).narrow(-1, 0, k.size(0)).matmul(by_head(v)).transpose(0, 1);
}

}  // namespace pptrain::test

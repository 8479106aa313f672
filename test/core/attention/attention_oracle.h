// Attention over documents with one mask for the whole list: what kernels and rings are compared with, and by
// autograd their gradients.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/tokens/segments.h"

namespace pptrain::test {

// bool [tokens, tokens]: whether the query of the row does not see the key of the column.
inline at::Tensor hidden_pairs(const tokens::Segments& segments) {
  at::Tensor hidden = at::ones({segments.tokens(), segments.tokens()}, at::kBool);
  for (int64_t d = 0; d < segments.documents(); ++d) {
    const int64_t length = segments.length(d);
    hidden.narrow(0, segments.first(d), length)
        .narrow(1, segments.first(d), length)
        .copy_(at::ones({length, length}, at::kBool).triu(1));
  }
  return hidden;
}

// Scores times 1 / sqrt(head_dim) unless `scale` is given. q: [tokens, heads, head_dim]; k, v: [tokens,
// kv_heads, head_dim] -> [tokens, heads, head_dim].
inline at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const tokens::Segments& segments, std::optional<double> scale = {}) {
  const auto by_head = [&](const at::Tensor& x) {
    return x.transpose(0, 1).repeat_interleave(q.size(1) / x.size(1), 0);
  };
  const at::Tensor scores = by_head(q).matmul(by_head(k).transpose(1, 2)) *
                            scale.value_or(1 / std::sqrt(static_cast<double>(q.size(2))));
  const at::Tensor seen =
      scores.masked_fill(hidden_pairs(segments), -std::numeric_limits<double>::infinity());
  return at::softmax(seen, -1).matmul(by_head(v)).transpose(0, 1);
}

}  // namespace pptrain::test

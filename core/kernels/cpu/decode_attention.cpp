#include "core/kernels/cpu/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/kernels/cpu/attention_head.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::kernels::cpu {
namespace {

int64_t most_keys(std::span<const CachedKeys> documents) {
  int64_t most = 0;
  for (const CachedKeys& document : documents) most = std::max(most, document.keys);
  return most;
}

}  // namespace

// Threads share out documents and, within them, key-value heads.
void decode_attention(const at::Tensor& q, int64_t kv_heads, std::span<const CachedKeys> documents,
                      at::Tensor& result) {
  const int64_t group = q.size(1) / kv_heads, head_dim = q.size(2);
  const int64_t longest = most_keys(documents);
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  by_type(q, [&]<class T>(T) {
    const auto count = static_cast<int64_t>(documents.size()) * kv_heads;
    parallel_for(count, row_grain(longest * head_dim), [&](int64_t begin, int64_t end) {
      const auto scores = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(longest));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / kv_heads, kv_head = i % kv_heads;
        const CachedKeys& keys = documents[static_cast<size_t>(row)];
        const int64_t first = kv_head * keys.capacity * head_dim;
        typed<T>(loops()).decode_attention({.q = head_in<T>(q, row, kv_head * group).data,
                                            .q_stride = q.stride(1),
                                            .k = static_cast<const T*>(keys.k) + first,
                                            .v = static_cast<const T*>(keys.v) + first,
                                            .out = head_out<T>(result, row, kv_head * group).data,
                                            .out_stride = result.stride(1),
                                            .scores = scores.get(),
                                            .heads = group,
                                            .keys = keys.keys,
                                            .head_dim = head_dim,
                                            .scale = scale});
      }
    });
  });
}

}  // namespace pptrain::kernels::cpu

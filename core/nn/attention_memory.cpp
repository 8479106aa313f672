#include "core/nn/attention_memory.h"

#include <algorithm>

#include "core/kernels/cuda/cudnn_shape.h"

namespace pptrain::nn {
namespace {

constexpr int64_t kBf16 = 2, kF32 = 4;  // bytes

int64_t rounded_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

bool is_grouped(const AttentionCall& call) {
  return call.heads != call.kv_heads;
}

// --- FlashAttention-2 ---

// Queries of a batch, or of one list, with the rows that are added so that blocks of 128 never meet.
struct FlashRows {
  int64_t documents = 1, rows = 0;
};

FlashRows flash_rows(const AttentionCall& call) {
  if (call.equal) return {call.documents, call.documents * rounded_up(call.longest, 128)};
  return {call.documents, call.tokens + 128 * call.documents};
}

// softmax_d and dq_accum in float32; of grouped heads also gradients of every head's keys and values.
int64_t flash_backward(const AttentionCall& call, FlashRows q, int64_t keys, int multiprocessors) {
  const int64_t wide = rounded_up(call.head_dim, call.head_dim <= 128 ? 32 : 64);
  const int64_t blocks = q.documents * call.heads;
  const int64_t sums = call.deterministic ? (multiprocessors + blocks - 1) / blocks : 1;
  const int64_t expanded = is_grouped(call) ? 2 * keys * call.heads * call.head_dim * kBf16 : 0;
  return call.heads * q.rows * kF32 + sums * q.rows * call.heads * wide * kF32 + expanded;
}

// --- cuDNN ---

// Of one part of the heads (cudnn_head_parts): the sums over rows (float32); the gradient of the scores or,
// where the order of sums is free, dq in float32; of grouped heads also gradients of every head's keys and
// values. Those of ragged documents lie as all heads do.
int64_t cudnn_backward(const AttentionCall& call) {
  const auto shape = kernels::cuda::cudnn_shape(call.documents, call.longest, call.tokens, call.equal);
  // The frontend (1.32) knows how many tokens ragged documents have together where heads fill whole tiles.
  const bool packed = shape.ragged && call.head_dim % 16 == 0;
  const int64_t rows = packed ? shape.tokens : shape.documents * shape.longest;
  const int64_t heads = call.heads / std::max<int64_t>(cudnn_head_parts(call), 1);
  const bool on_chip = call.deterministic && !kernels::cuda::writes_score_gradient(true, call.capability);
  const int64_t ordered =
      call.deterministic ? score_gradient_bytes(call) : rows * heads * call.head_dim * kF32;
  const int64_t expanded_heads = packed ? call.heads : heads;
  const int64_t wide = packed || on_chip ? kF32 : kBf16;
  const int64_t expanded = is_grouped(call) ? 2 * rows * expanded_heads * call.head_dim * wide : 0;
  return rows * heads * kF32 + ordered + expanded;
}

// --- Memory-efficient attention, float32 ---

// Keys and values, or their gradients, of every head.
int64_t expanded_pair(const AttentionCall& call) {
  return is_grouped(call) ? 2 * call.tokens * call.heads * call.head_dim * kF32 : 0;
}

// ATen multiplies out and dout, sums over each row, and turns the sums. The gradients of key-value heads come
// when those of all heads are there.
int64_t efficient_backward(const AttentionCall& call) {
  const int64_t product = call.tokens * call.heads * call.head_dim * kF32;
  const int64_t sums = 2 * call.tokens * call.heads * kF32;
  const int64_t later = is_grouped(call) ? 2 * call.tokens * call.kv_heads * call.head_dim * kF32 : 0;
  return 2 * expanded_pair(call) + product + sums - later;
}

}  // namespace

int64_t forward_scratch(AttentionBackEnd back_end, const AttentionCall& call) {
  return back_end == AttentionBackEnd::efficient ? expanded_pair(call) : 0;
}

int64_t backward_scratch(AttentionBackEnd back_end, const AttentionCall& call, int multiprocessors) {
  switch (back_end) {
    case AttentionBackEnd::cudnn:
      return cudnn_backward(call);
    case AttentionBackEnd::flash:
      return flash_backward(call, flash_rows(call), call.tokens, multiprocessors);
    case AttentionBackEnd::efficient:
      break;
  }
  return efficient_backward(call);
}

// The block's output in bfloat16 and, scaled, in float32 (merge_attention); logsumexp, and three more such
// rows.
int64_t block_forward_scratch(const AttentionCall& call, int64_t rows) {
  return rows * call.heads * (call.head_dim * (kBf16 + kF32) + 4 * kF32);
}

// With the block's own dq, dk and dv, and a copy of its logsumexp.
int64_t block_backward_scratch(const AttentionCall& call, int64_t rows, int64_t keys, int multiprocessors) {
  const int64_t gradients = (rows * call.heads + 2 * keys * call.kv_heads) * call.head_dim * kBf16;
  const FlashRows q{.documents = 1, .rows = rounded_up(rows, 128)};
  return flash_backward(call, q, keys, multiprocessors) + gradients + rows * call.heads * kF32;
}

}  // namespace pptrain::nn

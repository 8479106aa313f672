#include "core/nn/attention_choice.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>

#include "core/kernels/cuda/cudnn_shape.h"

namespace pptrain::nn {

namespace {

using kernels::cuda::CudnnShape;

constexpr int64_t kShortest = 64;  // below, a step's time is not in attention

CudnnShape shape_of(const AttentionCall& call) {
  return kernels::cuda::cudnn_shape(call.documents, call.longest, call.tokens, call.equal);
}

// The graphs address ragged documents by offsets in elements, int32.
bool offsets_fit(const AttentionCall& call) {
  const int64_t widest = (call.heads + 2 * call.kv_heads) * call.head_dim;
  return (call.tokens + 1) * widest <= std::numeric_limits<int32_t>::max();
}

}  // namespace

int64_t cudnn_head_parts(const AttentionCall& call) {
  return kernels::cuda::head_parts(shape_of(call), call.heads, call.kv_heads, call.deterministic,
                                   call.capability);
}

AttentionCall describe_call(const at::Tensor& q, const at::Tensor& k, const tokens::Segments& segments,
                            bool deterministic, int capability) {
  return {.capability = capability,
          .type = q.scalar_type(),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .head_dim = q.size(2),
          .documents = segments.documents(),
          .longest = segments.longest,
          .tokens = segments.tokens(),
          .equal = segments.equal_lengths(),
          .deterministic = deterministic};
}

// FlashAttention-2 serves what cuDNN does not; CUTLASS reads four float32 at once.
std::string why_no_attention(at::ScalarType type, int64_t head_dim) {
  if (type == at::kBFloat16 && (head_dim % 8 != 0 || head_dim > 256)) {
    return fmt::format(
        "heads of {} elements: on a GPU attention in bf16 takes multiples of 8 up to 256 (in fp32 multiples "
        "of 4)",
        head_dim);
  }
  if (type == at::kFloat && head_dim % 4 != 0)
    return fmt::format("heads of {} elements: on a GPU attention in fp32 takes multiples of 4", head_dim);
  return "";
}

int64_t score_gradient_bytes(const AttentionCall& call) {
  if (!kernels::cuda::writes_score_gradient(call.deterministic, call.capability)) return 0;
  const int64_t parts = std::max<int64_t>(cudnn_head_parts(call), 1);
  return kernels::cuda::score_gradient_bytes(shape_of(call), call.heads / parts);
}

AttentionBackEnd choose_attention(const AttentionCall& call) {
  if (call.type != at::kBFloat16) return AttentionBackEnd::efficient;
  // Hopper, and the Blackwell of data centres. Elsewhere cuDNN runs kernels made for Ampere, no faster than
  // FlashAttention-2, and has no deterministic ones for ragged documents.
  const bool has_kernels = call.capability >= 90 && call.capability < 120;
  if (!call.has_cudnn || !has_kernels) return AttentionBackEnd::flash;
  if (call.head_dim > 128 || call.head_dim % 8 != 0 || call.longest < kShortest) {
    return AttentionBackEnd::flash;
  }
  if (cudnn_head_parts(call) == 0) return AttentionBackEnd::flash;
  if (shape_of(call).ragged && !offsets_fit(call)) return AttentionBackEnd::flash;
  return AttentionBackEnd::cudnn;
}

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

#include "core/attention/gpu.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>

#include "core/attention/cudnn/cudnn_shape.h"

namespace pptrain::attention {

namespace {

constexpr int64_t kShortest = 64;  // below, a step's time is not in attention

CudnnShape plan_shape(const CallShape& x) {
  return cudnn_shape(x.documents, x.longest, x.tokens, x.equal);
}

bool sums_in_order(const CallShape& x) {
  return sums_in_order(plan_shape(x), x.deterministic);
}

// The graphs address ragged documents by offsets in elements, int32.
bool offsets_fit(const CallShape& x) {
  const int64_t widest = (x.heads + 2 * x.kv_heads) * x.head_dim;
  return (x.tokens + 1) * widest <= std::numeric_limits<int32_t>::max();
}

}  // namespace

int64_t cudnn_backward_parts(const CallShape& x) {
  return backward_parts(plan_shape(x), x.heads, x.kv_heads, x.deterministic, x.capability);
}

CallShape describe_call(const AttentionCall& call, int capability) {
  const tokens::Segments& documents = call.documents;
  return {.capability = capability,
          .type = call.q.scalar_type(),
          .heads = call.q.size(1),
          .kv_heads = call.k.size(1),
          .head_dim = call.q.size(2),
          .documents = documents.documents(),
          .longest = documents.longest,
          .tokens = documents.tokens(),
          .equal = documents.equal_lengths(),
          .deterministic = call.deterministic,
          .asks = what_asks(call)};
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

int64_t score_gradient_bytes(const CallShape& x) {
  if (!writes_score_gradient(sums_in_order(x), x.capability)) return 0;
  const int64_t parts = std::max<int64_t>(cudnn_backward_parts(x), 1);
  return score_gradient_bytes(plan_shape(x), x.heads / parts);
}

namespace {

BackEnd fastest(const CallShape& x) {
  if (x.type != at::kBFloat16) return BackEnd::efficient;
  // Hopper, and the data centre Blackwell. On other GPUs cuDNN runs kernels made for Ampere, no faster than
  // FlashAttention-2, and has no deterministic ones for ragged documents.
  const bool has_kernels = x.capability >= 90 && x.capability < 120;
  if (!x.has_cudnn || !has_kernels) return BackEnd::flash;
  if (x.head_dim > 128 || x.head_dim % 8 != 0 || x.longest < kShortest) return BackEnd::flash;
  if (cudnn_backward_parts(x) == 0) return BackEnd::flash;
  if (plan_shape(x).ragged && !offsets_fit(x)) return BackEnd::flash;
  return BackEnd::cudnn;
}

}  // namespace

BackEnd choose_on_gpu(const CallShape& x) {
  const BackEnd best = fastest(x);
  if (takes(best, x.asks)) return best;
  for (const BackEnd flash : {BackEnd::flash, BackEnd::flash_blocks}) {
    if (x.type == at::kBFloat16 && takes(flash, x.asks)) return flash;
  }
  return BackEnd::composed_blocks;
}

namespace {

constexpr int64_t kBf16 = 2, kF32 = 4;  // bytes

int64_t rounded_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

bool is_grouped(const CallShape& x) {
  return x.heads != x.kv_heads;
}

// --- FlashAttention-2 ---

// Queries of a batch, or of one list, with the rows that are added so that blocks of 128 never meet.
struct FlashRows {
  int64_t documents = 1, rows = 0;
};

FlashRows flash_rows(const CallShape& x) {
  if (x.equal) return {x.documents, x.documents * rounded_up(x.longest, 128)};
  return {x.documents, x.tokens + 128 * x.documents};
}

// softmax_d and dq_accum in float32; of grouped heads also gradients of every head's keys and values.
int64_t flash_scratch(const CallShape& x, FlashRows q, int64_t keys, int multiprocessors) {
  const int64_t wide = rounded_up(x.head_dim, x.head_dim <= 128 ? 32 : 64);
  const int64_t blocks = q.documents * x.heads;
  const int64_t sums = x.deterministic ? (multiprocessors + blocks - 1) / blocks : 1;
  const int64_t expanded = is_grouped(x) ? 2 * keys * x.heads * x.head_dim * kBf16 : 0;
  return x.heads * q.rows * kF32 + sums * q.rows * x.heads * wide * kF32 + expanded;
}

// --- cuDNN ---

// For one part of the heads (cudnn_backward_parts): the sums over rows (float32); the gradient of the scores
// or, if the order of sums is free, dq in float32; for grouped heads also gradients of every head's keys and
// values. If `packed`, the latter cover all heads.
int64_t cudnn_scratch(const CallShape& x) {
  const CudnnShape shape = plan_shape(x);
  // The frontend (1.32) knows how many tokens ragged documents have together if heads fill whole tiles.
  const bool packed = shape.ragged && x.head_dim % 16 == 0;
  const int64_t rows = packed ? shape.tokens : shape.documents * shape.longest;
  const int64_t heads = x.heads / std::max<int64_t>(cudnn_backward_parts(x), 1);
  const bool in_order = sums_in_order(x);
  const bool on_chip = in_order && !writes_score_gradient(true, x.capability);
  const int64_t ordered = in_order ? score_gradient_bytes(x) : rows * heads * x.head_dim * kF32;
  const int64_t expanded_heads = packed ? x.heads : heads;
  const int64_t wide = packed || on_chip ? kF32 : kBf16;
  const int64_t expanded = is_grouped(x) ? 2 * rows * expanded_heads * x.head_dim * wide : 0;
  return rows * heads * kF32 + ordered + expanded;
}

// --- Memory-efficient attention, float32 ---

// Keys and values, or their gradients, of every head.
int64_t expanded_pair(const CallShape& x) {
  return is_grouped(x) ? 2 * x.tokens * x.heads * x.head_dim * kF32 : 0;
}

// ATen multiplies out and dout, sums over each row, and turns the sums. The gradients of key-value heads come
// after the gradients of all heads.
int64_t efficient_scratch(const CallShape& x) {
  const int64_t product = x.tokens * x.heads * x.head_dim * kF32;
  const int64_t sums = 2 * x.tokens * x.heads * kF32;
  const int64_t later = is_grouped(x) ? 2 * x.tokens * x.kv_heads * x.head_dim * kF32 : 0;
  return 2 * expanded_pair(x) + product + sums - later;
}

}  // namespace

int64_t forward_scratch(BackEnd back_end, const CallShape& x) {
  return back_end == BackEnd::efficient ? expanded_pair(x) : 0;
}

int64_t backward_scratch(BackEnd back_end, const CallShape& x, int multiprocessors) {
  if (back_end == BackEnd::cudnn) return cudnn_scratch(x);
  if (back_end == BackEnd::flash) return flash_scratch(x, flash_rows(x), x.tokens, multiprocessors);
  return back_end == BackEnd::efficient ? efficient_scratch(x) : 0;
}

// The block's output in bfloat16 and, scaled, in float32 (merge_attention); logsumexp, and three more such
// rows.
int64_t block_forward_scratch(const CallShape& x, int64_t rows) {
  return rows * x.heads * (x.head_dim * (kBf16 + kF32) + 4 * kF32);
}

// With the block's own dq, dk and dv, and a copy of its logsumexp.
int64_t block_backward_scratch(const CallShape& x, int64_t rows, int64_t keys, int multiprocessors) {
  const int64_t gradients = (rows * x.heads + 2 * keys * x.kv_heads) * x.head_dim * kBf16;
  const FlashRows q{.documents = 1, .rows = rounded_up(rows, 128)};
  return flash_scratch(x, q, keys, multiprocessors) + gradients + rows * x.heads * kF32;
}

}  // namespace pptrain::attention

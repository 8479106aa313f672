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

}  // namespace pptrain::nn

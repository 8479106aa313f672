// Attention on a GPU by libraries. Which one computes a call depends only on the call and the machine, so
// that all ranks, and a run that is repeated, choose alike; the same one computes both passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "core/attention/attention.h"

namespace pptrain::attention {

// What the choice depends on.
struct CallShape {
  int capability = 0;  // of the GPU: 90 is 9.0, Hopper
  at::ScalarType type = at::kBFloat16;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t documents = 0, longest = 0, tokens = 0;
  bool equal = true;          // all documents are as long as the longest
  bool deterministic = true;  // the backward pass must be
  bool has_cudnn = true;      // this program is built with cuDNN's frontend
  Takes asks{};
};

// On a GPU of this capability.
CallShape describe_call(const AttentionCall& call, int capability);

// Why no library of a GPU computes attention of such heads; "" if one does. head_dim is even.
std::string why_no_attention(at::ScalarType type, int64_t head_dim);

// Never cudnn if its plan cannot exist; cuDNN may still refuse a plan, then flash serves. If no library takes
// what a call asks for, composed_blocks.
BackEnd choose_on_gpu(const CallShape& shape);

// For a call whose tensors are on a GPU: the same, or its replacement if cuDNN refuses a plan.
BackEnd choose_on_gpu(const AttentionCall& call);

// The call's window as FlashAttention-2 takes it: keys before a query's own that it sees.
std::optional<int64_t> keys_before(const AttentionCall& call);

// By saved.back_end. Fills saved.out, saved.logsumexp and the random numbers. Documents of unequal lengths go
// with their starts, key-value heads without copies (but for float32).
void attend_on_gpu(Saved& saved);
Gradients attend_on_gpu_backward(const at::Tensor& dout, const Saved& saved);

// LibTorch's FlashAttention-2 adds in a fixed order if LibTorch's process-wide flag asks for it, and by no
// other means. A run sets the flag at its start (core/kernels/numerics.h); for callers without a run, this
// sets it before a backward pass. It is never taken back: other threads may be computing.
void let_flash_be_deterministic(bool deterministic);

// In how many runs cuDNN's backward pass takes the heads; 0 if the gradient of the scores that it writes
// would be too large in any (cudnn/cudnn_shape.h).
int64_t cudnn_backward_parts(const CallShape& shape);

// Bytes of the gradient of the scores that one of these runs writes; 0 if it is not written.
int64_t score_gradient_bytes(const CallShape& shape);

// --- Memory that a GPU's libraries allocate during one call of attention, in addition to its operands,
// results and gradients. Taken from the sources of LibTorch 2.11 (flash_api.cpp, attention_backward.cu) and
// of cuDNN's frontend 1.32. For predictions: the libraries themselves are never told.

// Bytes of a forward pass. If FlashAttention-2 splits the keys of a small batch, a few more.
int64_t forward_scratch(BackEnd back_end, const CallShape& shape);

// Bytes of a backward pass. If it is deterministic, FlashAttention-2 has as many sums of dq as give each of
// the GPU's `multiprocessors` its own block.
int64_t backward_scratch(BackEnd back_end, const CallShape& shape, int multiprocessors);

// The same of one block of ring attention by FlashAttention-2, `rows` queries and `keys` keys, with what adds
// it to the other blocks.
int64_t block_forward_scratch(const CallShape& shape, int64_t rows);
int64_t block_backward_scratch(const CallShape& shape, int64_t rows, int64_t keys, int multiprocessors);

}  // namespace pptrain::attention

// Attention whose keys come in parts, as on a ring of ranks: each part's blocks are added to what the queries
// have of the others. By our own kernel on the CPU, by FlashAttention-2 for bfloat16 on CUDA, by plain
// operators elsewhere, which are slower and hold the scores of 256 rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "core/attention/attention.h"
#include "core/tokens/context_split.h"

namespace pptrain::attention {

// What queries have of the keys that they have seen.
struct PartialAttention {
  at::Tensor out;        // float32 [tokens, heads, head_dim]: softmax(scale q k^T) v
  at::Tensor logsumexp;  // float32 [heads, tokens]: of the scores and, if there is one, the sink
  BackEnd back_end = BackEnd::cpu_blocks;
};

// Of the call's queries, which have seen nothing but the sink: zeros, and minus infinity or the sink, which
// counts here alone; with the back end for them.
PartialAttention no_attention(const AttentionCall& call);

// Adds `blocks`, made for the call's window, in their order, of the call's q and of k and v: T [keys,
// kv_heads, head_dim]. The call's documents are not read, and its list is one that no ranks share. On CUDA,
// bfloat16 needs a head_dim that is a multiple of 8, of 256 at most. On the meta device only cost and memory
// are recorded: of the blocks given, no more. Throws Error for what the back end does not take.
void add_attention(const AttentionCall& call, std::span<const tokens::AttentionBlock> blocks,
                   PartialAttention& seen);

// What the forward pass of `call` leaves, whose queries have seen all of their keys; returns saved.out.
at::Tensor finish_attention(AttentionCall call, PartialAttention seen, Saved& saved);

// `x` in a type, as a kernel of its own where that is another one.
at::Tensor rounded(const at::Tensor& x, at::ScalarType type);

// Adds the blocks' share of dq, dk and dv to those of `grads`: float32, as q, k and v, contiguous. saved.out:
// T, contiguous, and saved.logsumexp are those of all keys; saved.call as above; dout: T, as q.
void add_attention_backward(const at::Tensor& dout, const Saved& saved,
                            std::span<const tokens::AttentionBlock> blocks, Gradients& grads);

// Whole documents by flash_blocks or composed_blocks (saved.back_end), a block for each: as attend_by and
// attend_backward, without dsinks.
void attend_in_blocks(Saved& saved);
Gradients attend_in_blocks_backward(const at::Tensor& dout, const Saved& saved);

}  // namespace pptrain::attention

// Which library computes a call of attention on a GPU: a function of the call and the machine alone, so that
// all ranks, and a run that is repeated, choose alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/tokens/segments.h"

namespace pptrain::nn {

enum class AttentionBackEnd {
  cudnn,      // cuDNN's graphs: the fastest on Hopper and later; gradients go straight into one tensor
  flash,      // FlashAttention-2 of LibTorch: every GPU since Ampere
  efficient,  // LibTorch's memory-efficient attention: float32
};

struct AttentionCall {
  int capability = 0;  // of the GPU: 90 is 9.0, Hopper
  at::ScalarType type = at::kBFloat16;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t documents = 0, longest = 0, tokens = 0;
  bool equal = true;          // all documents are as long as the longest
  bool deterministic = true;  // the backward pass must be
  bool has_cudnn = true;      // this program is built with cuDNN's frontend
};

// Of q: [tokens, heads, head_dim] and k, over these documents, on a GPU of this capability.
AttentionCall describe_call(const at::Tensor& q, const at::Tensor& k, const tokens::Segments& segments,
                            bool deterministic, int capability);

// Why no library of a GPU computes attention of such heads; "" where one does. head_dim is even.
std::string why_no_attention(at::ScalarType type, int64_t head_dim);

// Never cudnn where its plan cannot be, but it may still refuse one: then flash serves.
AttentionBackEnd choose_attention(const AttentionCall& call);

// In how many runs cuDNN's backward pass takes the heads; 0 where the gradient of the scores that it writes
// would be too large in any (core/kernels/cuda/cudnn_shape.h).
int64_t cudnn_head_parts(const AttentionCall& call);

// Bytes of the gradient of the scores that one of these runs writes; 0 where it is not written.
int64_t score_gradient_bytes(const AttentionCall& call);

// --- What a GPU's libraries take of memory during one call of attention, beside its operands, results and
// gradients: as the sources of LibTorch 2.11 (flash_api.cpp, attention_backward.cu) and of cuDNN's frontend
// 1.32 ask for it. For predictions: the libraries themselves are never told.

// Bytes of a forward pass. Where FlashAttention-2 splits the keys of a small batch, a few more.
int64_t forward_scratch(AttentionBackEnd back_end, const AttentionCall& call);

// Bytes of a backward pass. FlashAttention-2 has, deterministic, as many sums of dq as give each of the GPU's
// `multiprocessors` a block of its own.
int64_t backward_scratch(AttentionBackEnd back_end, const AttentionCall& call, int multiprocessors);

// The same of one block of ring attention by FlashAttention-2, `rows` queries and `keys` keys, with what adds
// it to the other blocks.
int64_t block_forward_scratch(const AttentionCall& call, int64_t rows);
int64_t block_backward_scratch(const AttentionCall& call, int64_t rows, int64_t keys, int multiprocessors);

}  // namespace pptrain::nn

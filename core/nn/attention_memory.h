// What a GPU's libraries take of memory during one call of attention, beside its operands, results and
// gradients: as the sources of LibTorch 2.11 (flash_api.cpp, attention_backward.cu) and of cuDNN's frontend
// 1.32 ask for it. For predictions: the libraries themselves are never told.
#pragma once

#include <cstdint>

#include "core/nn/attention_choice.h"

namespace pptrain::nn {

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

// Attention by our own CPU kernels. The row statistics and the backward pass are FlashAttention-2's (Dao,
// arXiv 2307.08691). Key-value heads are shared by their group of query heads without copies. A document's
// results do not depend on the other documents, nor on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/attention/cache.h"

namespace pptrain::attention {

// Whole documents (document_blocks), in blocks of query rows whose scores exist at full width; keys behind
// the last row of a block are skipped, and those before the window of its first row. Fills saved.out: T, as
// q, contiguous, and saved.logsumexp: float32 [heads, tokens].
void attend_on_cpu(const Saved& saved, std::span<const tokens::AttentionBlock> documents);

// Its gradients: any strides with the last one 1. Gradients of key-value heads are summed over a group of
// heads in float32.
void attend_on_cpu_backward(const at::Tensor& dout, const Saved& saved,
                            std::span<const tokens::AttentionBlock> documents, const Gradients& grads);

// dsinks: float32 [heads]. dout and saved.out: any strides with the last one 1; saved.logsumexp: float32
// [heads, tokens]. Each head's sum is in the order of tokens.
void sink_gradient_on_cpu(const at::Tensor& dout, const Saved& saved, const at::Tensor& dsinks);

// As add_attention and add_attention_backward (blocks.h): tiles of queries and keys, merged in float32.
void add_blocks_on_cpu(const AttentionCall& call, std::span<const tokens::AttentionBlock> blocks,
                       const PartialAttention& seen);
void add_blocks_on_cpu_backward(const at::Tensor& dout, const Saved& saved,
                                std::span<const tokens::AttentionBlock> blocks, const Gradients& grads);

// As attend_to_cache (cache.h): two products of a vector with a matrix, bound by memory traffic. Sums and
// weights are float32.
void decode_on_cpu(const AttentionCall& call, const KeyValueCache& cache, int64_t layer,
                   std::span<const CachedDocument> documents, const at::Tensor& out);

}  // namespace pptrain::attention

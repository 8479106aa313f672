// Attention whose keys come in parts, as on a ring of ranks: each part's blocks are merged into the queries'
// attention to the other parts. On the CPU by our own kernel, on CUDA by FlashAttention-2 for bfloat16.
// Otherwise by plain operators, which are slower and hold the scores of 256 rows at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/attention/attention.h"
#include "core/data/tokens/context_split.h"
#include "core/kernels/cost.h"

namespace pptrain::attention {

// The causal attention of each whole document.
std::vector<tokens::AttentionBlock> document_blocks(const tokens::Segments& documents);

// `moved`, plus `products` GEMMs of 2 operations for each pair of a query and a key that it sees, head and
// element.
kernels::Cost cost_of(double products, const AttentionCall& call,
                      std::span<const tokens::AttentionBlock> blocks, kernels::Cost moved);

// Rows [query, query + rows) of the queries and keys [key, key + keys). The first row sees the keys up to
// number `first` of the tile; `keys` or more: all rows see all.
struct Tile {
  int64_t query, rows, key, keys, first;
};

// Calls f for the tiles of a block, row after row, and within a row in the order of its keys, from the first
// one within the window of a query. window: 0 for none.
template <class F>
void for_tiles(const tokens::AttentionBlock& block, int64_t window, int64_t most_rows, int64_t most_keys,
               F f) {
  for (int64_t row = 0; row < block.rows; row += most_rows) {
    const int64_t rows = std::min(most_rows, block.rows - row);
    const int64_t itself = block.distance + row;
    const int64_t begin = window == 0 ? 0 : std::max<int64_t>(0, itself + 1 - window);
    const int64_t seen = block.causal ? row + rows : block.keys;
    for (int64_t key = begin; key < seen; key += most_keys) {
      const int64_t keys = std::min(most_keys, seen - key);
      f(Tile{.query = block.query + row,
             .rows = rows,
             .key = block.key + key,
             .keys = keys,
             .first = block.causal || window != 0 ? itself - key : keys});
    }
  }
}

// Attention of queries to the keys that they have seen.
struct PartialAttention {
  at::Tensor out;        // float32 [tokens, heads, head_dim]: softmax(scale q k^T) v
  at::Tensor logsumexp;  // float32 [heads, tokens]: of the scores and, if there is one, the sink
  BackEnd back_end = BackEnd::cpu_blocks;
};

// For the call's queries, which have seen nothing but the sink: zeros, and minus infinity or the sink, which
// counts only here; with the back end for them.
PartialAttention no_attention(const AttentionCall& call);

// Adds `blocks`, made for the call's window, in their order, of the call's q and of k and v: T [keys,
// kv_heads, head_dim]. The call's documents are not read, and its list must not be sharded. On CUDA, bfloat16
// needs a head_dim that is a multiple of 8, of 256 at most. On the meta device only cost and memory are
// recorded: of the blocks given, no more. Throws Error for what the back end does not take.
void add_attention(const AttentionCall& call, std::span<const tokens::AttentionBlock> blocks,
                   PartialAttention& seen);

// Ends the forward pass of `call`, whose queries have seen all of their keys: fills `saved` and returns
// saved.out.
at::Tensor finish_attention(AttentionCall call, PartialAttention seen, Saved& saved);

// Adds the blocks' parts of dq, dk and dv to `grads`: float32, as q, k and v, contiguous. saved.out (T,
// contiguous) and saved.logsumexp cover all keys; saved.call as above; dout: T, as q.
void add_attention_backward(const at::Tensor& dout, const Saved& saved,
                            std::span<const tokens::AttentionBlock> blocks, Gradients& grads);

// Turns the sums over all blocks into the backward pass's result: in the type of dout, with dsinks. dq:
// [tokens, heads, head_dim]; dkv: [2, tokens, kv_heads, head_dim].
Gradients finish_gradients(const at::Tensor& dq, const at::Tensor& dkv, const at::Tensor& dout,
                           const Saved& saved);

// Whole documents by flash_blocks or composed_blocks (saved.back_end): as attend_by and attend_backward,
// without dsinks.
void attend_in_blocks(Saved& saved);
Gradients attend_in_blocks_backward(const at::Tensor& dout, const Saved& saved);

}  // namespace pptrain::attention

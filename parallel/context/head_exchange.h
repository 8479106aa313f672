// The exchange of heads for tokens: ranks with some tokens of all heads become ranks with all tokens of some
// heads, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/tokens/context_split.h"
#include "parallel/comm/communicator.h"

namespace pptrain::context {

// Which heads each rank computes: `heads` query heads each, and for them the key-value heads
// `kv_heads[rank]`, of which each serves heads / kv_heads[rank].size() query heads in a row. A key-value head
// that several ranks need is in several lists; where a rank's query heads do not fit evenly to key-value
// heads, it gets one for each query head, some of them twice.
struct HeadShares {
  int64_t heads = 0;
  std::vector<std::vector<int64_t>> kv_heads;

  int64_t kv_heads_each() const { return static_cast<int64_t>(kv_heads.front().size()); }
};

// Throws Error unless `ranks` divides `heads`. kv_heads divides heads.
HeadShares share_heads(int64_t heads, int64_t kv_heads, int ranks);

// Between [tokens of this rank, ...] and [tokens of all ranks, ...] in the order of the whole list. The
// group's ranks are the split's; both must outlive the exchange.
class HeadExchange {
 public:
  HeadExchange(comm::Communicator& group, const tokens::ContextSplit& split) : group_(group), split_(split) {}

  // by_rank: [ranks, own tokens, width, head_dim], contiguous: what each rank is to get of this rank's
  // tokens. Returns [all tokens, width, head_dim].
  at::Tensor to_heads(const at::Tensor& by_rank) const;

  // all: [all tokens, width, head_dim] -> [ranks, own tokens, width, head_dim], by the rank that sent it.
  at::Tensor to_tokens(const at::Tensor& all) const;

 private:
  // Between rows by rank and rows in the order of the list; the argument itself where these are the same.
  at::Tensor in_list_order(at::Tensor by_rank) const;
  at::Tensor in_rank_order(const at::Tensor& listed) const;
  bool ranks_are_in_order() const;

  comm::Communicator& group_;
  const tokens::ContextSplit& split_;
};

}  // namespace pptrain::context

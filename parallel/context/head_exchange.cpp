#include "parallel/context/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"

namespace pptrain::context {
namespace {

using at::Tensor;

// Calls f(row among the ranks' rows one after the other, range) for every range of every rank.
template <class F>
void for_ranges(const tokens::ContextSplit& split, F f) {
  int64_t row = 0;
  for (const auto& ranges : split.ranges) {
    for (const tokens::TokenRange& range : ranges) {
      f(row, range);
      row += range.length();
    }
  }
}

}  // namespace

HeadShares share_heads(int64_t heads, int64_t kv_heads, int ranks) {
  if (heads % ranks != 0) {
    throw Error(fmt::format("attention: {} heads cannot be shared out among {} context-parallel ranks", heads,
                            ranks));
  }
  const int64_t each = heads / ranks;
  const int64_t group = heads / kv_heads;
  // Query heads in a row that one key-value head of a rank's list serves.
  int64_t served = 1;
  if (each % group == 0) served = group;
  if (group % each == 0) served = each;
  HeadShares shares{.heads = each, .kv_heads = std::vector<std::vector<int64_t>>(static_cast<size_t>(ranks))};
  for (int64_t head = 0; head < heads; head += served) {
    shares.kv_heads[static_cast<size_t>(head / each)].push_back(head / group);
  }
  return shares;
}

Tensor HeadExchange::to_heads(const Tensor& by_rank) const {
  const int64_t row = by_rank.size(2) * by_rank.size(3);
  std::vector<int64_t> from;
  int64_t all = 0;
  for (int r = 0; r < split_.parts(); ++r) {
    from.push_back(split_.tokens(r) * row);
    all += split_.tokens(r);
  }
  const std::vector<int64_t> to(from.size(), by_rank.size(1) * row);
  Tensor received = at::empty({all, by_rank.size(2), by_rank.size(3)}, by_rank.options());
  group_.iall_to_all(received, from, by_rank, to)->wait([] {
    return "tokens of the heads of Ulysses attention";
  });
  return in_list_order(std::move(received));
}

Tensor HeadExchange::to_tokens(const Tensor& all) const {
  const Tensor sent = in_rank_order(all);
  const int64_t row = all.size(1) * all.size(2);
  const int64_t own = split_.tokens(split_.part);
  std::vector<int64_t> to;
  for (int r = 0; r < split_.parts(); ++r) to.push_back(split_.tokens(r) * row);
  const std::vector<int64_t> from(to.size(), own * row);
  Tensor by_rank = at::empty({split_.parts(), own, all.size(1), all.size(2)}, all.options());
  group_.iall_to_all(by_rank, from, sent, to)->wait([] {
    return "heads of the tokens of Ulysses attention";
  });
  return by_rank;
}

bool HeadExchange::ranks_are_in_order() const {
  bool same = true;
  for_ranges(split_,
             [&](int64_t row, const tokens::TokenRange& range) { same = same && row == range.begin; });
  return same;
}

Tensor HeadExchange::in_list_order(Tensor by_rank) const {
  if (ranks_are_in_order()) return by_rank;
  Tensor listed = at::empty_like(by_rank);
  for_ranges(split_, [&](int64_t row, const tokens::TokenRange& range) {
    listed.narrow(0, range.begin, range.length()).copy_(by_rank.narrow(0, row, range.length()));
  });
  kernels::record(kernels::moving(by_rank, listed));
  return listed;
}

Tensor HeadExchange::in_rank_order(const Tensor& listed) const {
  if (ranks_are_in_order()) return listed.contiguous();
  Tensor by_rank = at::empty(listed.sizes(), listed.options());
  for_ranges(split_, [&](int64_t row, const tokens::TokenRange& range) {
    by_rank.narrow(0, row, range.length()).copy_(listed.narrow(0, range.begin, range.length()));
  });
  kernels::record(kernels::moving(listed, by_rank));
  return by_rank;
}

}  // namespace pptrain::context

#include "parallel/axes/context/plans.h"

#include <spdlog/fmt/fmt.h>

#include <cstddef>

#include "core/base/error.h"

namespace pptrain::context {

void check_split(const attention::AttentionCall& call, int rank, int ranks) {
  const tokens::ContextSplit& split = *call.split;
  if (split.parts() != ranks || split.part != rank) {
    throw Error(fmt::format("attention: tokens of rank {} of {}, but this is rank {} of a group of {}",
                            split.part, split.parts(), rank, ranks));
  }
  int64_t all = 0;
  for (int r = 0; r < ranks; ++r) all += split.tokens(r);
  if (call.q.size(0) != split.tokens(rank) || all != call.documents.tokens()) {
    throw Error(fmt::format(
        "attention: {} queries, but the split gives this rank {} of {} tokens, and the documents have {}",
        call.q.size(0), split.tokens(rank), all, call.documents.tokens()));
  }
}

RingPlan plan_ring(const tokens::ContextSplit& split, const tokens::Segments& segments, int64_t window) {
  const int ranks = split.parts();
  std::vector<std::vector<tokens::DocumentPiece>> pieces;
  for (int r = 0; r < ranks; ++r) pieces.push_back(tokens::document_pieces(split, r, segments));
  const auto blocks = [&](int queries, int keys) {
    return tokens::attention_blocks(pieces[static_cast<size_t>(queries)], pieces[static_cast<size_t>(keys)],
                                    window);
  };
  RingPlan plan{.rank = split.part, .ranks = ranks, .steps = {}, .used = {}};
  int needed = 1;
  for (int step = 0; step < ranks; ++step) {
    plan.steps.push_back(blocks(plan.rank, plan.owner(step)));
    plan.used.push_back(!blocks(plan.user(step), plan.rank).empty());
    for (int r = 0; r < ranks && needed <= step; ++r) {
      if (!blocks(r, (r - step + ranks) % ranks).empty()) needed = step + 1;
    }
  }
  plan.steps.resize(static_cast<size_t>(needed));
  plan.used.resize(static_cast<size_t>(needed));
  return plan;
}

std::vector<std::vector<int64_t>> share_kv_heads(int64_t heads, int64_t kv_heads, int ranks) {
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
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(ranks));
  for (int64_t head = 0; head < heads; head += served)
    shares[static_cast<size_t>(head / each)].push_back(head / group);
  return shares;
}

}  // namespace pptrain::context

#include "parallel/context/ring_plan.h"

#include "core/tokens/context_split.h"

namespace pptrain::context {

RingPlan plan_ring(const tokens::ContextSplit& split, const tokens::Segments& segments) {
  const int ranks = split.parts();
  std::vector<std::vector<tokens::DocumentPiece>> pieces;
  for (int r = 0; r < ranks; ++r) pieces.push_back(tokens::document_pieces(split, r, segments));
  const auto blocks = [&](int queries, int keys) {
    return tokens::attention_blocks(pieces[static_cast<size_t>(queries)], pieces[static_cast<size_t>(keys)]);
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

}  // namespace pptrain::context

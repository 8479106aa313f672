#include "parallel/pipeline/token_order.h"

#include <algorithm>
#include <tuple>

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::pipeline {

// A round has as many passes as groups, but a multiple of the ranks: then its slots repeat, and the first
// stage's next pass comes after the last stage's.
TokenOrder::TokenOrder(const schedule::Schedule& schedule, int rank, int groups)
    : passes_((groups + schedule.ranks - 1) / schedule.ranks * schedule.ranks),
      period_(passes_ * schedule.stages_per_rank) {
  if (groups < 1) throw Error("generation of no group of sequences");
  const int last = schedule.stages() - 1;
  for (int group = 0; group < groups; ++group) {
    for (const int stage : schedule.stages_of(rank))
      next_.push_back({.group = group,
                       .stage = stage,
                       .slot = schedule::forward_slot(schedule, stage, group),
                       .pass = group});
    if (schedule.rank_of(last) == rank) continue;
    next_.push_back({.is_choice = true,
                     .group = group,
                     .stage = last,
                     .slot = schedule::forward_slot(schedule, last, group) + 1,
                     .pass = group});
  }
}

TokenAction TokenOrder::next() {
  TokenAction& next = *std::ranges::min_element(
      next_, {}, [](const TokenAction& a) { return std::tuple(a.slot, a.pass, a.stage); });
  const TokenAction action = next;
  next.slot += period_;
  next.pass += passes_;
  ++next.round;
  return action;
}

}  // namespace pptrain::pipeline

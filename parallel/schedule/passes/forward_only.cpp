#include <algorithm>
#include <cstdint>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// S follows the last stage's forward, and T follows S.
int64_t slot(const Schedule& s, const Action& action) {
  if (!is_of_head(action.kind)) return forward_slot(s, action.stage, action.microbatch);
  return forward_slot(s, s.stages() - 1, action.microbatch) +
         (action.kind == ActionKind::head_forward ? 1 : 2);
}

}  // namespace

int64_t forward_slot(const Schedule& s, int stage, int64_t microbatch) {
  const int64_t v = s.stages_per_rank;
  if (s.placement == Placement::v) return stage + v * microbatch;
  return microbatch / s.ranks * s.ranks * v + stage + microbatch % s.ranks;
}

Schedule forward_only(const Schedule& schedule, int microbatches) {
  Schedule result = schedule.of_whole_lists();
  result.forward_only = true;
  if (microbatches > 0) result.microbatches = microbatches;
  for (int rank = 0; rank < result.ranks; ++rank) {
    auto& list = result.actions[rank];
    for (const int stage : result.stages_of(rank)) {
      for (int mb = 0; mb < result.microbatches; ++mb) list.push_back(forward(stage, mb));
    }
    for (int mb = 0; mb < result.microbatches && result.spread_head; ++mb) {
      list.push_back(head_forward(rank, mb));
      list.push_back(head_backward(rank, mb));
    }
    std::ranges::stable_sort(list, {}, [&](const Action& action) { return slot(result, action); });
  }
  return result;
}

}  // namespace pptrain::schedule

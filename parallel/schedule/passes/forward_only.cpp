#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// The unit of time in which the forward would run if every rank were always busy. It grows from each stage to
// the next, so sorting by it gives lists that cannot deadlock, whatever the sizes.
int64_t slot(const Schedule& s, int stage, int microbatch) {
  const int64_t v = s.stages_per_rank;
  if (s.placement == Placement::v) return stage + v * microbatch;
  const int64_t round = microbatch / s.ranks;
  return round * s.ranks * v + stage + microbatch % s.ranks;
}

// S follows the last stage's forward, and T follows S.
int64_t slot(const Schedule& s, const Action& action) {
  if (!is_of_head(action.kind)) return slot(s, action.stage, action.microbatch);
  return slot(s, s.stages() - 1, action.microbatch) + (action.kind == ActionKind::head_forward ? 1 : 2);
}

}  // namespace

Schedule forward_only(const Schedule& schedule, int microbatches) {
  Schedule result = schedule.without_actions();
  result.forward_only = true;
  result.microbatches = microbatches > 0 ? microbatches : schedule.microbatches / schedule.sequence_slices;
  result.sequence_slices = 1;
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

#include <vector>

#include "parallel/schedule/passes/insert.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

Schedule add_reduce_grad(const Schedule& schedule, Reduce reduce) {
  Schedule result = schedule.without_actions();
  std::vector<int> weight_gradients(static_cast<size_t>(schedule.stages()));  // [stage] done so far
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<Inserted> reductions;
    size_t computes = 0;
    for (const Action& action : schedule.actions[rank]) {
      if (!is_compute(action.kind)) continue;
      for_each_part(action, [&](const Action& part) {
        if (!is_weight_gradient(part.kind)) return;
        const bool last = ++weight_gradients[part.stage] == schedule.microbatches;
        if (reduce == Reduce::microbatch || (reduce == Reduce::step && last))
          reductions.push_back({computes, {ActionKind::reduce_grad, part.stage}});
      });
      ++computes;
    }
    result.actions[rank] = insert(schedule.actions[rank], {}, reductions);
  }
  return result;
}

}  // namespace pptrain::schedule

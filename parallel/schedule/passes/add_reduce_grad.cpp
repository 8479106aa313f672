#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

Schedule add_reduce_grad(const Schedule& schedule) {
  Schedule result = schedule.without_actions();
  std::vector<int> weight_gradients(static_cast<size_t>(schedule.stages()));  // [stage] done so far
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& list = schedule.actions[rank];
    auto& with_reduce = result.actions[rank];
    with_reduce.reserve(list.size() + static_cast<size_t>(schedule.stages_per_rank));
    std::vector<Action> due;
    const auto flush = [&] {
      with_reduce.insert(with_reduce.end(), due.begin(), due.end());
      due.clear();
    };
    for (const Action& action : list) {
      if (!due.empty() && !is_send(action.kind)) flush();
      with_reduce.push_back(action);
      for_each_part(action, [&](const Action& part) {
        if (part.kind != ActionKind::backward && part.kind != ActionKind::backward_weight) return;
        if (++weight_gradients[part.stage] == schedule.microbatches) {
          due.push_back({ActionKind::reduce_grad, part.stage});
        }
      });
    }
    flush();
  }
  return result;
}

}  // namespace pptrain::schedule

#include <unordered_map>
#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

Schedule add_reduce_grad(const Schedule& schedule) {
  Schedule result = schedule;
  for (auto& list : result.actions) {
    std::unordered_map<int, int> done;  // weight gradients by stage
    std::vector<Action> due;
    std::vector<Action> with_reduce;
    with_reduce.reserve(list.size() + schedule.stages_per_rank);
    const auto flush = [&] {
      with_reduce.insert(with_reduce.end(), due.begin(), due.end());
      due.clear();
    };
    for (const Action& action : list) {
      if (!is_send(action.kind)) flush();
      with_reduce.push_back(action);
      for_each_part(action, [&](const Action& part) {
        if (part.kind != ActionKind::backward && part.kind != ActionKind::backward_weight) return;
        if (++done[part.stage] == schedule.microbatches)
          due.push_back({ActionKind::reduce_grad, part.stage, -1, {}});
      });
    }
    flush();
    list = std::move(with_reduce);
  }
  return result;
}

}  // namespace pptrain::schedule

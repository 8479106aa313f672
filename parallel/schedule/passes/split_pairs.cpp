#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

Schedule split_pairs(const Schedule& schedule) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = result.actions[rank];
    list.reserve(schedule.actions[rank].size());
    for (const Action& action : schedule.actions[rank]) {
      for_each_part(action, [&](const Action& part) { list.push_back(part); });
    }
  }
  return result;
}

}  // namespace pptrain::schedule

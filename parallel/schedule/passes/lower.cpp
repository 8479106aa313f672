#include <algorithm>
#include <iterator>

#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"

namespace pptrain::schedule {
namespace {

bool has_reduce_grad(const Schedule& schedule) {
  for (const auto& list : schedule.actions) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::reduce_grad) return true;
    }
  }
  return false;
}

}  // namespace

Schedule compute_only(const Schedule& schedule) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank].reserve(schedule.actions[rank].size());
    std::ranges::copy_if(schedule.actions[rank], std::back_inserter(result.actions[rank]),
                         [](const Action& action) { return is_compute(action.kind); });
  }
  return result;
}

Schedule lower(Schedule schedule, const LowerOptions& options) {
  validate(schedule);
  if (!schedule.has_communication()) {
    schedule = add_communication(schedule);
    validate(schedule, ReceiveModel::in_place);
    schedule = hoist_receives(schedule, options.lookahead);
    validate(schedule);
  }
  if (options.reduce_grad && !schedule.forward_only && !has_reduce_grad(schedule)) {
    schedule = add_reduce_grad(schedule);
    validate(schedule);
  }
  return schedule;
}

}  // namespace pptrain::schedule

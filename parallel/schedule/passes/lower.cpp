#include <utility>

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

Schedule compute_only(Schedule schedule) {
  for (auto& list : schedule.actions) {
    std::erase_if(list, [](const Action& action) { return !is_compute(action.kind); });
  }
  return schedule;
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

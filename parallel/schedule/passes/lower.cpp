#include <algorithm>
#include <iterator>

#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"

namespace pptrain::schedule {
namespace {

bool has(const Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.actions, [&](const auto& list) {
    return std::ranges::find(list, kind, &Action::kind) != list.end();
  });
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
  if (has(schedule, ActionKind::overlapped_pair)) {
    schedule = split_pairs(schedule);
    validate(schedule);
  }
  if (!schedule.has_communication()) {
    schedule = add_communication(schedule);
    validate(schedule, ReceiveModel::in_place);
    schedule = hoist_receives(schedule, options.lookahead);
    validate(schedule);
  }
  if (options.reduce_grad && !schedule.forward_only && !has(schedule, ActionKind::reduce_grad)) {
    schedule = add_reduce_grad(schedule);
    validate(schedule);
  }
  return schedule;
}

}  // namespace pptrain::schedule

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"

namespace pptrain::schedule {
namespace {

bool has(const Schedule& schedule, ActionKind kind) {
  return std::ranges::any_of(schedule.actions, [&](const auto& list) {
    return std::ranges::find(list, kind, &Action::kind) != list.end();
  });
}

// Does every stage have at least one of the kind, or exactly `number`?
constexpr int any_number = -1;
bool every_stage_has(const Schedule& schedule, ActionKind kind, int number) {
  if (!has(schedule, kind)) return false;
  std::vector<int> found(static_cast<size_t>(schedule.stages()));
  for (const auto& list : schedule.actions) {
    for (const Action& action : list) found[action.stage] += action.kind == kind;
  }
  return std::ranges::all_of(found, [&](int n) { return number == any_number ? n > 0 : n == number; });
}

template <typename Keep>
Schedule filtered(const Schedule& schedule, Keep&& keep) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank].reserve(schedule.actions[rank].size());
    std::ranges::copy_if(schedule.actions[rank], std::back_inserter(result.actions[rank]), keep,
                         &Action::kind);
  }
  return result;
}

Schedule without(Schedule schedule, ActionKind a, ActionKind b) {
  if (!has(schedule, a) && !has(schedule, b)) return schedule;
  return filtered(schedule, [&](ActionKind kind) { return kind != a && kind != b; });
}

Schedule with_weights_gathered(Schedule schedule, bool streamed) {
  if (every_stage_has(schedule, ActionKind::unshard, any_number)) return schedule;
  schedule = add_unshard(without(std::move(schedule), ActionKind::unshard, ActionKind::reshard), streamed);
  validate(schedule);
  return schedule;
}

Schedule with_gradients_reduced(Schedule schedule, Reduce reduce) {
  const int wanted = reduce == Reduce::step ? 1 : schedule.microbatches;
  if (every_stage_has(schedule, ActionKind::reduce_grad, wanted)) return schedule;
  schedule =
      add_reduce_grad(without(std::move(schedule), ActionKind::reduce_grad, ActionKind::reduce_grad), reduce);
  validate(schedule);
  return schedule;
}

}  // namespace

Schedule compute_only(const Schedule& schedule) {
  return filtered(schedule, is_compute);
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
  const ShardOptions& shard = options.shard;
  if (shard.reduce != Reduce::none && !schedule.forward_only)
    schedule = with_gradients_reduced(std::move(schedule), shard.reduce);
  if (shard.unshard) schedule = with_weights_gathered(std::move(schedule), shard.streamed);
  return schedule;
}

}  // namespace pptrain::schedule

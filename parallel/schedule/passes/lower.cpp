#include <algorithm>
#include <future>
#include <iterator>
#include <memory>
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

// Proofs of long lists, overlapped with the next pass: a pass needs only the places of actions, which the
// proof of the incoming list has checked.
class Proofs {
 public:
  void begin(const std::shared_ptr<const Schedule>& schedule,
             ReceiveModel model = ReceiveModel::at_consumer) {
    constexpr size_t most_at_once = size_t{1} << 14;  // passes: 2 ms
    const auto prove = [schedule, model] { validate(*schedule, model); };
    if (schedule->cells() <= most_at_once) return prove();
    proofs_.push_back(std::async(std::launch::async, prove));
  }
  // Throws what the first that failed has thrown.
  void end() {
    for (std::future<void>& proof : proofs_) proof.get();
  }

 private:
  std::vector<std::future<void>> proofs_;
};

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

Schedule without(const Schedule& schedule, ActionKind a, ActionKind b) {
  return filtered(schedule, [&](ActionKind kind) { return kind != a && kind != b; });
}

Schedule with_weights_gathered(const Schedule& schedule, Gather gather) {
  if (!has(schedule, ActionKind::unshard) && !has(schedule, ActionKind::reshard))
    return add_unshard(schedule, gather);
  return add_unshard(without(schedule, ActionKind::unshard, ActionKind::reshard), gather);
}

Schedule with_gradients_reduced(const Schedule& schedule, Reduce reduce) {
  if (!has(schedule, ActionKind::reduce_grad)) return add_reduce_grad(schedule, reduce);
  return add_reduce_grad(without(schedule, ActionKind::reduce_grad, ActionKind::reduce_grad), reduce);
}

}  // namespace

Schedule whole_head(const Schedule& schedule) {
  Schedule result = without(schedule, ActionKind::head_forward, ActionKind::head_backward);
  result.spread_head = false;
  return result;
}

Schedule compute_only(const Schedule& schedule) {
  return filtered(schedule, is_compute);
}

Schedule lower(Schedule given, const ShardOptions& shard) {
  validate(given);
  Proofs proofs;
  auto schedule = std::make_shared<Schedule>(std::move(given));
  const auto pass = [&](Schedule result, ReceiveModel model = ReceiveModel::at_consumer) {
    schedule = std::make_shared<Schedule>(std::move(result));
    proofs.begin(schedule, model);
  };
  if (has(*schedule, ActionKind::overlapped_pair)) pass(split_pairs(*schedule, shard.keep_pairs));
  if (!schedule->has_communication()) {
    pass(add_communication(*schedule), ReceiveModel::in_place);
    pass(hoist_receives(*schedule));
  }
  const int reductions = shard.reduce == Reduce::step ? 1 : schedule->microbatches;
  if (shard.reduce != Reduce::none && !schedule->forward_only &&
      !every_stage_has(*schedule, ActionKind::reduce_grad, reductions))
    pass(with_gradients_reduced(*schedule, shard.reduce));
  if (shard.gather != Gather::never && !every_stage_has(*schedule, ActionKind::unshard, any_number))
    pass(with_weights_gathered(*schedule, shard.gather));
  proofs.end();
  return std::move(*schedule);
}

Schedule split_pairs(const Schedule& schedule, bool same_stage) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    auto& list = result.actions[rank];
    list.reserve(schedule.actions[rank].size());
    for (const Action& action : schedule.actions[rank]) {
      if (same_stage && action.stage != action.backward_stage) {
        list.push_back(action);
      } else {
        for_each_part(action, [&](const Action& part) { list.push_back(part); });
      }
    }
  }
  return result;
}

}  // namespace pptrain::schedule

// The passes that place UNSHARD, RESHARD and REDUCE_GRAD between the actions of a list.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

struct Inserted {
  size_t compute;  // a compute action of the list, by its number among them
  Action action;
};

// The list with each of `before` right before its compute action, and each of `after` behind its compute
// action and the sends that follow it. Both in ascending order of `compute`.
std::vector<Action> insert(const std::vector<Action>& list, std::span<const Inserted> before,
                           std::span<const Inserted> after) {
  std::vector<Action> result;
  result.reserve(list.size() + before.size() + after.size());
  size_t computes = 0;  // so far
  const auto put_after = [&] {
    for (; !after.empty() && after.front().compute < computes; after = after.subspan(1))
      result.push_back(after.front().action);
  };
  for (const Action& action : list) {
    if (!is_send(action.kind)) put_after();
    if (is_compute(action.kind)) {
      for (; !before.empty() && before.front().compute == computes; before = before.subspan(1))
        result.push_back(before.front().action);
      ++computes;
    }
    result.push_back(action);
  }
  put_after();
  return result;
}

// The gathers of one rank. Compute actions have numbers; each needs the weights of its stage, a pair those of
// two.
class Gathers {
 public:
  explicit Gathers(bool streamed) : streamed_(streamed) {}

  std::vector<Action> run(const std::vector<Action>& list) {
    size_t computes = 0;
    for (const Action& action : list) {
      if (!is_compute(action.kind)) continue;
      for_each_part(action, [&](const Action& part) {
        if (needs_weights(part.kind)) use(part.stage, computes);
      });
      ++computes;
    }
    for (const auto& [stage, last] : last_use_) reshard(stage, last);
    std::ranges::stable_sort(reshards_, {}, &Inserted::compute);
    return insert(list, unshards_, reshards_);
  }

 private:
  void use(int stage, size_t compute) {
    const auto [known, first] = last_use_.try_emplace(stage, compute);
    if (first) {
      unshard(stage, streamed_ && compute > 0 ? compute - 1 : 0);
    } else if (streamed_ && compute > known->second + 2) {  // else RESHARD would meet the UNSHARD
      reshard(stage, known->second);
      unshard(stage, compute - 1);
    }
    known->second = compute;
  }

  void unshard(int stage, size_t compute) { unshards_.push_back({compute, {ActionKind::unshard, stage}}); }
  void reshard(int stage, size_t compute) { reshards_.push_back({compute, {ActionKind::reshard, stage}}); }

  bool streamed_;
  std::map<int, size_t> last_use_;  // [stage] the compute action that needed its weights last
  std::vector<Inserted> unshards_, reshards_;
};

}  // namespace

Schedule add_unshard(const Schedule& schedule, Gather gather) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank] = Gathers(gather == Gather::streamed).run(schedule.actions[rank]);
  }
  return result;
}

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

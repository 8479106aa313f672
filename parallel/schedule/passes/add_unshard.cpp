#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "parallel/schedule/passes/insert.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Of one rank. Compute actions have numbers; each needs the weights of its stage, a pair those of two.
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

Schedule add_unshard(const Schedule& schedule, bool streamed) {
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank] = Gathers(streamed).run(schedule.actions[rank]);
  }
  return result;
}

}  // namespace pptrain::schedule

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <vector>

#include "parallel/schedule/proof/checks.h"
#include "parallel/schedule/proof/grid.h"

namespace pptrain::schedule {
namespace {

enum class Parameters : uint8_t { always_whole, sharded, unsharded };

struct StageState {
  Parameters parameters = Parameters::always_whole;
  bool reduced = false;
  int weight_gradients = 0;
};

class WholeStageCheck {
 public:
  explicit WholeStageCheck(const Schedule& schedule)
      : s_(schedule), stages_(static_cast<size_t>(schedule.stages())) {}

  void run(int rank) {
    const auto& list = s_.actions[rank];
    bool any_reduce = false;
    for (const Action& action : list) {
      if (action.kind == ActionKind::unshard) stages_[action.stage].parameters = Parameters::sharded;
      any_reduce |= action.kind == ActionKind::reduce_grad;
    }
    for (size_t i = 0; i < list.size(); ++i) check(rank, i, list[i]);
    if (!any_reduce) return;
    for (const int stage : s_.stages_of(rank)) {
      if (!stages_[stage].reduced)
        refuse(s_, rank, list.size(), fmt::format("{}REDUCE_GRAD is missing", stage));
    }
  }

 private:
  void check(int rank, size_t i, const Action& action) {
    if (action.kind == ActionKind::unshard || action.kind == ActionKind::reshard) {
      check_sharding(rank, i, action);
    } else if (action.kind == ActionKind::reduce_grad) {
      check_reduction(rank, i, stages_[action.stage]);
    } else if (is_compute(action.kind)) {
      for_each_part(action, [&](const Action& part) {
        StageState& stage = stages_[part.stage];
        if (stage.parameters == Parameters::sharded) refuse(s_, rank, i, "the stage is not unsharded");
        stage.weight_gradients +=
            part.kind == ActionKind::backward || part.kind == ActionKind::backward_weight;
      });
    }
  }

  void check_sharding(int rank, size_t i, const Action& action) {
    Parameters& parameters = stages_[action.stage].parameters;
    if (action.kind == ActionKind::unshard) {
      if (parameters == Parameters::unsharded) refuse(s_, rank, i, "the stage is unsharded already");
      parameters = Parameters::unsharded;
    } else {
      if (parameters != Parameters::unsharded) refuse(s_, rank, i, "the stage is not unsharded");
      parameters = Parameters::sharded;
    }
  }

  void check_reduction(int rank, size_t i, StageState& stage) {
    if (stage.weight_gradients != s_.microbatches) {
      refuse(s_, rank, i,
             fmt::format("only {} of {} weight gradients of the stage are there", stage.weight_gradients,
                         s_.microbatches));
    }
    if (stage.reduced) refuse(s_, rank, i, "the gradients of the stage are reduced already");
    stage.reduced = true;
  }

  const Schedule& s_;
  std::vector<StageState> stages_;  // [stage]; each is on one rank
};

}  // namespace

void check_whole_stage_actions(const Places& places) {
  if (!places.has_whole_stage_actions()) return;
  WholeStageCheck check(places.schedule());
  for (int rank = 0; rank < places.schedule().ranks; ++rank) check.run(rank);
}

}  // namespace pptrain::schedule

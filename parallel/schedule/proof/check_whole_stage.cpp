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
  int reductions = 0;        // REDUCE_GRADs in the whole list
  int weight_gradients = 0;  // so far
  int unreduced = 0;         // of these, by no REDUCE_GRAD so far
};

class WholeStageCheck {
 public:
  explicit WholeStageCheck(const Schedule& schedule)
      : s_(schedule), stages_(static_cast<size_t>(schedule.stages())) {}

  void run() {
    for (const auto& list : s_.actions) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::unshard) stages_[action.stage].parameters = Parameters::sharded;
        if (action.kind == ActionKind::reduce_grad) any_reduce_ = true, ++stages_[action.stage].reductions;
      }
    }
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) check(rank, i, s_.actions[rank][i]);
      if (any_reduce_) check_end(rank);
    }
  }

 private:
  void check(int rank, size_t i, const Action& action) {
    if (is_compute(action.kind)) {
      for_each_part(action, [&](const Action& part) { check_compute(rank, i, part); });
    } else if (action.kind == ActionKind::unshard || action.kind == ActionKind::reshard) {
      check_sharding(rank, i, action);
    } else if (action.kind == ActionKind::reduce_grad) {
      check_reduction(rank, i, stages_[action.stage]);
    }
  }

  void check_compute(int rank, size_t i, const Action& part) {
    StageState& stage = stages_[part.stage];
    if (needs_weights(part.kind) && stage.parameters == Parameters::sharded)
      refuse(s_, rank, i, "the stage is not unsharded");
    if (!is_weight_gradient(part.kind)) return;
    ++stage.weight_gradients;
    ++stage.unreduced;
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

  // A stage's only REDUCE_GRAD takes all gradients; of several, each takes those of one microbatch.
  void check_reduction(int rank, size_t i, StageState& stage) {
    if (stage.unreduced == 0) {
      refuse(s_, rank, i,
             stage.weight_gradients == 0 ? "the stage has no gradients yet"
                                         : "the gradients of the stage are reduced already");
    }
    if (stage.reductions == 1 && stage.unreduced != s_.microbatches) {
      refuse(s_, rank, i,
             fmt::format("only {} of {} weight gradients of the stage are there", stage.unreduced,
                         s_.microbatches));
    }
    if (stage.reductions > 1 && stage.unreduced > 1) {
      refuse(s_, rank, i,
             fmt::format("{} weight gradients of the stage are there; where it is reduced more than once, "
                         "each is reduced before the next",
                         stage.unreduced));
    }
    stage.unreduced = 0;
  }

  void check_end(int rank) {
    for (const int stage : s_.stages_of(rank)) {
      if (stages_[stage].unreduced > 0 || stages_[stage].reductions == 0)
        refuse(s_, rank, s_.actions[rank].size(), fmt::format("{}REDUCE_GRAD is missing", stage));
    }
  }

  const Schedule& s_;
  std::vector<StageState> stages_;  // [stage]; each is on one rank
  bool any_reduce_ = false;
};

}  // namespace

void check_whole_stage_actions(const Places& places) {
  if (!places.has_whole_stage_actions()) return;
  WholeStageCheck(places.schedule()).run();
}

}  // namespace pptrain::schedule

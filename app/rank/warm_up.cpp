#include "app/rank/warm_up.h"

#include <ATen/ops/arange.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/config/data_sources.h"
#include "core/config/job_config.h"
#include "core/data/microbatch.h"

namespace pptrain::app {
namespace {

using schedule::ActionKind;

// Which backward passes a rank's list has.
struct Backward {
  bool at_once = false;  // B
  bool split = false;    // I and W
};

Backward backward_of(const std::vector<schedule::Action>& list) {
  Backward backward;
  for (const schedule::Action& action : list) {
    schedule::for_each_part(action, [&](const schedule::Action& part) {
      backward.at_once |= part.kind == ActionKind::backward;
      backward.split |= part.kind == ActionKind::backward_input;
    });
  }
  return backward;
}

// The longest list and, in jobs with exact lengths, also the shortest, even if it is as long. Data ranks have
// lists of their own, but exchange weights, gradients and experts' rows with each other, so the job alone
// decides how many lists run. Ranks that shard a list choose the same one, since all of them know its
// documents. With sequence slices takes first slices, which need no earlier keys.
std::vector<const data::Microbatch*> lengths(std::span<const data::Microbatch> microbatches,
                                             const config::JobConfig& job) {
  if (microbatches.empty()) throw Error("a warm-up needs a microbatch");
  std::vector<const data::Microbatch*> lists;
  for (const data::Microbatch& microbatch : microbatches)
    if (microbatch.begins_list()) lists.push_back(&microbatch);
  const auto tokens = [](const data::Microbatch* m) { return m->segments.tokens(); };
  const auto [shortest, longest] = std::ranges::minmax_element(lists, {}, tokens);
  if (job.data.lengths != data::Lengths::exact) return {*longest};
  return {*longest, *shortest};
}

// Values between -1 and 1 that differ from token to token, since a router would send equal ones to the same
// experts. Uses no generator, whose state would change.
at::Tensor made_up(at::Tensor boundary) {
  const at::Tensor values = at::arange(boundary.numel(), boundary.options().dtype(at::kFloat));
  return boundary.copy_(values.mul_(12.9898).sin_().view_as(boundary));
}

// Levels that microbatches of the stage can have.
std::vector<config::Recompute> levels_of(const Plan& plan, int stage) {
  const auto given = plan.job.train.recompute.levels(stage);
  std::vector<config::Recompute> levels;
  for (const config::Recompute level : config::all_recomputes) {
    const bool chosen_in_steps = plan.recompute_memory > 0 && level <= std::ranges::max(given);
    if (chosen_in_steps || std::ranges::find(given, level) != given.end()) levels.push_back(level);
  }
  return levels;
}

class StageWarmUp {
 public:
  // Passes of the first `microbatches` of the stage, one of `ranks` of the pipeline.
  StageWarmUp(const pipeline::StageWithWeights& own, const data::Microbatch& data, int microbatches,
              int ranks)
      : stage_(own.stage), weights_(own.weights), data_(data), microbatches_(microbatches), ranks_(ranks) {}

  // Two rounds: the first GEMM of a gradient overwrites it, later ones add to it with another kernel.
  // `evaluates`: the stage also computes losses without gradients.
  void run(const Backward& backward, bool evaluates) {
    constexpr int rounds = 2;
    weights_.unshard(ActionKind::forward);
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
      for (int round = 0; round < rounds; ++round) {
        if (backward.at_once) run_at_once(microbatch);
        if (backward.split) run_split(microbatch);
      }
    }
    if (stage_.has_head_part()) run_head(rounds);
    if (evaluates) evaluate();
    weights_.reduce_grad();
    weights_.finish();
    weights_.discard();
    stage_.discard();
  }

 private:
  void begin(ActionKind kind, std::optional<ActionKind> next) {
    weights_.begin_pass({.kind = kind, .next = next, .reduce_follows = false});
  }
  void run_at_once(int microbatch) {
    forward(microbatch, ActionKind::backward);
    begin(ActionKind::backward, ActionKind::forward);
    stage_.backward(microbatch, gradient());
  }
  void run_split(int microbatch) {
    forward(microbatch, ActionKind::backward_input);
    begin(ActionKind::backward_input, ActionKind::forward);
    stage_.backward_input(microbatch, gradient());
    begin(ActionKind::backward_weight, ActionKind::forward);
    stage_.backward_weight(microbatch);
  }
  // The rank's own statistics stand for those of all ranks.
  void run_head(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      begin(ActionKind::head_forward, ActionKind::head_backward);
      const at::Tensor own = stage_.head_forward(0, data_, boundary());
      begin(ActionKind::head_backward, ActionKind::forward);
      stage_.head_backward(0, data_, own.unsqueeze(0).expand({ranks_, -1, -1}).contiguous(),
                           /*with_gradients=*/true);
    }
  }
  void evaluate() {
    begin(ActionKind::forward, std::nullopt);
    stage_.forward_only(data_, stage_.is_first() ? at::Tensor() : boundary());
  }
  void forward(int microbatch, ActionKind next) {
    begin(ActionKind::forward, next);
    stage_.forward(microbatch, data_, stage_.is_first() ? at::Tensor() : boundary());
  }
  at::Tensor gradient() const { return stage_.is_last() ? at::Tensor() : boundary(); }
  at::Tensor boundary() const { return made_up(stage_.empty_boundary(data_)); }

  pipeline::Stage& stage_;
  pipeline::WeightActions& weights_;
  const data::Microbatch& data_;
  int microbatches_;
  int ranks_;
};

}  // namespace

void warm_up(const RunContext& context, RankModel& model, std::span<const data::Microbatch> microbatches) {
  const auto rank = static_cast<size_t>(context.mesh.coordinate(mesh::Axis::pp));
  const Backward backward = backward_of(context.plan.schedule.actions.at(rank));
  const bool evaluates = config::has_validation(context.job);
  const std::vector<pipeline::StageWithWeights> stages = model.pipeline_stages();
  model.zero_grad();
  const std::vector<const data::Microbatch*> lists = lengths(microbatches, context.job);
  std::vector<std::vector<config::Recompute>> levels, given;  // [stage][microbatch]
  for (const pipeline::StageWithWeights& own : stages) {
    levels.push_back(levels_of(context.plan, own.stage.index()));
    given.push_back(context.job.train.recompute.levels(own.stage.index()));
  }
  model.recompute_by_microbatch(levels);
  for (const data::Microbatch* data : lists) {
    for (size_t i = 0; i < stages.size(); ++i)
      StageWarmUp(stages[i], *data, static_cast<int>(levels[i].size()), context.mesh.size(mesh::Axis::pp))
          .run(backward, evaluates);
  }
  model.recompute_by_microbatch(given);
  for (const pipeline::StageWithWeights& own : stages) own.stage.parameters().zero_grad();
  if (context.device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(context.device.type()).getStream(context.device).synchronize();
}

}  // namespace pptrain::app

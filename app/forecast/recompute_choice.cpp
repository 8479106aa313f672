#include "app/forecast/stage_choices.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "app/plan/plan.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {
namespace {

using models::Recompute;

class RecomputeChooser {
 public:
  RecomputeChooser(Plan plan, Prediction predicted, const CostSource& source, double budget,
                   FootprintCache& dry_runs)
      : plan_(std::move(plan)),
        predicted_(std::move(predicted)),
        source_(source),
        budget_(budget),
        dry_runs_(dry_runs),
        costs_(dry_runs, plan_, source) {
    for (int stage = 0; stage < plan_.schedule.stages(); ++stage) {
      stages_.push_back(stage_recompute(plan_.job.train.recompute, stage));
      bytes_.push_back(bytes_of(stage, stages_.back()));
    }
  }

  std::pair<Plan, Prediction> run() {
    while (relieve()) {
      plan_.job.train.recompute = recompute_words(stages_);
      predicted_ = predict(plan_, CostModel(dry_runs_, plan_, source_));
    }
    return {std::move(plan_), std::move(predicted_)};
  }

 private:
  bool fits(int64_t bytes) const { return static_cast<double>(bytes) <= budget_; }

  schedule::StageBytes bytes_of(int stage, Recompute recompute) const {
    return costs_.bytes(costs_.slice(plan_.layers, stage), recompute);
  }

  // What the rank's passes hold at the worst moment.
  int64_t in_passes(int rank) const { return schedule::peak_bytes(plan_.schedule, bytes_, rank).total(); }

  // Raises stages of every rank that does not fit; false where there was nothing to raise.
  bool relieve() {
    bool raised = false;
    for (int rank = 0; rank < plan_.schedule.ranks; ++rank) {
      const int64_t total = predicted_.bytes[static_cast<size_t>(rank)].total();
      if (fits(total)) continue;
      const int64_t besides = total - in_passes(rank);
      while (raise_one(rank)) {
        raised = true;
        if (fits(besides + in_passes(rank))) break;
      }
    }
    return raised;
  }

  bool raise_one(int rank) {
    std::optional<Recompute> least;
    for (const int stage : plan_.schedule.stages_of(rank)) {
      if (stages_[stage] != Recompute::full && (!least || stages_[stage] < *least)) least = stages_[stage];
    }
    if (!least) return false;
    const auto next = static_cast<Recompute>(static_cast<int>(*least) + 1);
    std::optional<std::pair<int64_t, int>> best;  // bytes of the rank, stage
    for (const int stage : plan_.schedule.stages_of(rank)) {
      if (stages_[stage] != *least) continue;
      const schedule::StageBytes before = std::exchange(bytes_[stage], bytes_of(stage, next));
      const std::pair raised(in_passes(rank), stage);
      if (!best || raised < *best) best = raised;
      bytes_[stage] = before;
    }
    stages_[best->second] = next;
    bytes_[best->second] = bytes_of(best->second, next);
    return true;
  }

  Plan plan_;
  Prediction predicted_;
  const CostSource& source_;
  double budget_;
  FootprintCache& dry_runs_;
  CostModel costs_;
  std::vector<Recompute> stages_;            // [stage]
  std::vector<schedule::StageBytes> bytes_;  // [stage]
};

}  // namespace

std::pair<Plan, Prediction> choose_recompute(Plan plan, Prediction predicted, const CostSource& source,
                                             double budget, FootprintCache& dry_runs) {
  return RecomputeChooser(std::move(plan), std::move(predicted), source, budget, dry_runs).run();
}

}  // namespace pptrain::app

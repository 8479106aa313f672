#include "app/forecast/stage_choices.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/plan/plan.h"
#include "models/stage_slice.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/cost/recompute_levels.h"

namespace pptrain::app {
namespace {

using config::Recompute;

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
      stages_.push_back(plan_.job.train.recompute.most(stage));
      bytes_.push_back(bytes_of(stage, stages_.back()));
    }
  }

  std::pair<Plan, Prediction> run() {
    while (relieve()) {
      plan_.job.train.recompute = config::Recomputation(stages_);
      predicted_ = predict(plan_, CostModel(dry_runs_, plan_, source_));
    }
    return {std::move(plan_), std::move(predicted_)};
  }

 private:
  bool fits(int64_t bytes) const { return static_cast<double>(bytes) <= budget_; }

  schedule::StageBytes bytes_of(int stage, Recompute recompute) const {
    return costs_.bytes(costs_.slice(plan_.layers, stage), recompute);
  }

  // The peak of what the rank's passes hold.
  int64_t in_passes(int rank) const { return schedule::peak_bytes(plan_.schedule, bytes_, rank).total(); }

  // Raises stages of every rank that does not fit; false if there was nothing to raise.
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
    const std::vector<int> stages = plan_.schedule.stages_of(rank);
    const Recompute least = stages_[*std::ranges::min_element(stages, {}, [&](int s) { return stages_[s]; })];
    if (least == Recompute::full) return false;
    const auto next = static_cast<Recompute>(static_cast<int>(least) + 1);
    std::pair<int64_t, int> best(std::numeric_limits<int64_t>::max(), -1);  // bytes of the rank, stage
    for (const int stage : stages) {
      if (stages_[stage] != least) continue;
      const schedule::StageBytes before = std::exchange(bytes_[stage], bytes_of(stage, next));
      best = std::min(best, std::pair(in_passes(rank), stage));
      bytes_[stage] = before;
    }
    stages_[best.second] = next;
    bytes_[best.second] = bytes_of(best.second, next);
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

// The levels that microbatches of a plan's stages can have: from the lower of `least` and the lowest stage's,
// to each stage's own.
class MicrobatchLevels {
 public:
  using Bytes = std::vector<schedule::StageBytes>;

  MicrobatchLevels(const Plan& plan, const CostModel& costs, Recompute least) : lowered_(plan.schedule) {
    std::vector<Recompute> most;
    for (int stage = 0; stage < lowered_.stages(); ++stage)
      most.push_back(plan.job.train.recompute.most(stage));
    first_ = static_cast<int>(std::min(least, std::ranges::min(most)));
    for (size_t level = static_cast<size_t>(first_); level < config::all_recomputes.size(); ++level) {
      Bytes& bytes = bytes_.emplace_back();
      std::vector<double>& seconds = seconds_.emplace_back();
      for (int stage = 0; stage < lowered_.stages(); ++stage) {
        const StageForecast& own = costs.of(costs.slice(plan.layers, stage), config::all_recomputes[level]);
        bytes.push_back(own.bytes);
        seconds.push_back(own.cost.time.backward);
      }
    }
    for (size_t stage = 0; stage < most.size(); ++stage) {
      levels_.push_back(static_cast<int>(most[stage]) - first_);
      coarse_.push_back(bytes_[static_cast<size_t>(levels_.back())][stage]);
    }
  }

  // The peak of the rank's passes with all microbatches at their stages' levels.
  int64_t most(int rank) const { return schedule::peak_bytes(lowered_, coarse_, rank).total(); }

  // [stage of the rank][microbatch], with `room` bytes for the rank's passes. `bytes`: [level], by stage or
  // cell.
  std::vector<std::vector<Recompute>> choose(int rank, const std::vector<Bytes>& bytes, int64_t room) const {
    const std::vector<int> cells = schedule::recompute_levels(lowered_, rank, bytes, seconds_, levels_, room);
    std::vector<std::vector<Recompute>> chosen;
    for (const int stage : lowered_.stages_of(rank)) {
      std::vector<Recompute>& own = chosen.emplace_back();
      for (int mb = 0; mb < lowered_.microbatches; ++mb)
        own.push_back(config::all_recomputes[static_cast<size_t>(first_ + cells[lowered_.cell(stage, mb)])]);
    }
    return chosen;
  }

  // Bytes of full microbatches; and by cell, if microbatches have these fractions of the tokens. What passes
  // hold in addition is taken from full microbatches.
  const std::vector<Bytes>& bytes() const { return bytes_; }
  std::vector<Bytes> bytes_of(std::span<const double> parts) const {
    std::vector<Bytes> cells;
    for (const Bytes& full : bytes_) {
      Bytes& own = cells.emplace_back();
      for (const schedule::StageBytes& stage : full) {
        for (const double part : parts) {
          schedule::StageBytes& cell = own.emplace_back(stage);
          for (int64_t schedule::StageBytes::*kept :
               {&schedule::StageBytes::activation, &schedule::StageBytes::weight_operands})
            cell.*kept = static_cast<int64_t>(std::ceil(static_cast<double>(cell.*kept) * part));
        }
      }
    }
    return cells;
  }

 private:
  schedule::Schedule lowered_;
  int first_ = 0;                             // the lowest level here
  std::vector<Bytes> bytes_;                  // [level][stage]
  std::vector<std::vector<double>> seconds_;  // [level][stage] of B
  std::vector<int> levels_;                   // [stage]
  Bytes coarse_;                              // [stage] at its level
};

// The level of train.recompute = "auto" if memory suffices.
Recompute least_of_auto(config::JobConfig job) {
  job.train.recompute = {};
  return plan_base(job).job.train.recompute.most(0);
}

}  // namespace

std::optional<std::pair<Plan, Prediction>> lower_microbatches(Plan plan, double step_time, Recompute least,
                                                              const CostSource& source, double budget,
                                                              FootprintCache& dry_runs) {
  const CostModel costs(dry_runs, plan, source);
  const MicrobatchLevels levels(plan, costs, least);
  const std::vector<RankBytes> bytes = rank_bytes(costs, plan.layers, plan.schedule);
  std::vector<std::vector<Recompute>> chosen(static_cast<size_t>(plan.schedule.stages()));
  for (int rank = 0; rank < plan.schedule.ranks; ++rank) {
    const int64_t besides = bytes[static_cast<size_t>(rank)].total() - levels.most(rank);
    auto own = levels.choose(rank, levels.bytes(), static_cast<int64_t>(budget) - besides);
    for (size_t i = 0; const int stage : plan.schedule.stages_of(rank))
      chosen[static_cast<size_t>(stage)] = std::move(own[i++]);
  }
  config::Recomputation finest(chosen);
  if (finest == plan.job.train.recompute) return std::nullopt;
  plan.job.train.recompute = std::move(finest);
  Prediction finer = predict(plan, CostModel(dry_runs, plan, source));
  if (finer.step_time >= step_time || static_cast<double>(finer.peak_bytes()) > budget) return std::nullopt;
  return std::pair(std::move(plan), std::move(finer));
}

StepRecompute step_recompute(Plan plan, int rank) {
  std::vector<Recompute> most;
  for (int stage = 0; stage < plan.schedule.stages(); ++stage)
    most.push_back(plan.job.train.recompute.most(stage));
  plan.job.train.recompute = config::Recomputation(most);
  const std::string& named = plan.job.distributed.pp_costs;
  const CostModel costs(plan, make_cost_source(plan, named.ends_with(".json") ? "" : named));
  auto levels = std::make_shared<const MicrobatchLevels>(plan, costs, least_of_auto(plan.job));
  const int64_t all = rank_bytes(costs, plan.layers, plan.schedule)[static_cast<size_t>(rank)].total();
  const int64_t room = static_cast<int64_t>(plan.recompute_memory) - (all - levels->most(rank));
  const int64_t full = plan.job.train.micro_batch_size * plan.job.train.seq_len;
  // Ranks that shard a list differ by up to a row of it.
  const int64_t rows = 2 * plan.mesh.size(mesh::Group::replica);
  return [=](std::span<const int64_t> tokens) {
    std::vector<double> parts;
    for (const int64_t count : tokens)
      parts.push_back(std::min(1.0, static_cast<double>(count + rows) / static_cast<double>(full)));
    return levels->choose(rank, levels->bytes_of(parts), room);
  };
}

std::pair<Plan, Prediction> choose_recompute(Plan plan, Prediction predicted, const CostSource& source,
                                             double budget, FootprintCache& dry_runs) {
  return RecomputeChooser(std::move(plan), std::move(predicted), source, budget, dry_runs).run();
}

}  // namespace pptrain::app

#include "app/forecast/search.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "app/forecast/prediction.h"
#include "app/forecast/stage_choices.h"
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

// micro_batch_size x grad_accum_steps: the job's, or all of the same product.
std::vector<std::pair<int64_t, int64_t>> batchings(const config::TrainSection& train, bool all) {
  if (!all) return {{train.micro_batch_size, train.grad_accum_steps}};
  const int64_t samples = train.micro_batch_size * train.grad_accum_steps;
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int64_t m = 1; m <= std::min<int64_t>(samples, 1024); ++m) {
    if (samples % m == 0) result.emplace_back(samples / m, m);
  }
  return result;
}

class Searcher {
 public:
  Searcher(const PlanBase& base, const CostSource& source, const SearchOptions& options)
      : base_(base), source_(source), options_(options), dry_runs_(base.model) {}

  std::vector<Candidate> run() {
    find_schedules();
    try_all();
    std::ranges::stable_sort(found_, {}, [](const Candidate& c) {
      return std::tuple(!c.fits, c.fits ? c.step_time : 0.0, c.bytes.total());
    });
    return std::move(found_);
  }

 private:
  // A layout without its layers, and its schedule.
  struct Tried {
    Layout layout;
    std::shared_ptr<const schedule::Schedule> lowered;
  };

  void find_schedules() {
    const config::DistributedSection& d = base_.job.distributed;
    for (const auto& [size, count] : batchings(base_.job.train, options_.microbatches)) {
      for (const std::string& name : schedule::training_schedule_names()) {
        for (int64_t stages = 1; stages <= 4; ++stages) {
          if (d.pp_stages_per_rank > 0 && d.pp_stages_per_rank != stages) continue;
          if (d.pp * stages > base_.model.layers) continue;
          Layout layout = layout_of(base_);
          layout.micro_batch_size = size;
          layout.grad_accum_steps = count;
          layout.schedule = name;
          layout.stages_per_rank = stages;
          add_schedule(layout);
        }
      }
    }
  }

  void add_schedule(const Layout& layout) {
    std::optional<schedule::Schedule> compute;
    try {
      compute = schedule::make_schedule({.name = layout.schedule,
                                         .ranks = base_.mesh.pp,
                                         .microbatches = static_cast<int>(layout.grad_accum_steps),
                                         .stages_per_rank = static_cast<int>(layout.stages_per_rank)});
    } catch (const UsageError&) {
      return;  // the schedule does not exist for these numbers
    }
    const size_t words = layout.recompute.size();
    if (words > 1 && words != static_cast<size_t>(compute->stages())) return;  // the job gives it to others
    auto lowered = std::make_shared<const schedule::Schedule>(
        schedule::lower(*std::move(compute), lower_options(base_)));
    if (!has_twin(layout, *lowered)) tried_.push_back({layout, std::move(lowered)});
  }

  // Is the same list of actions there under another name, or one that does the same?
  bool has_twin(const Layout& layout, const schedule::Schedule& lowered) const {
    return (layout.stages_per_rank == 1 && schedule::repeats_with_one_stage(layout.schedule)) ||
           std::ranges::any_of(tried_, [&](const Tried& other) {
             return other.layout.stages_per_rank == layout.stages_per_rank &&
                    other.layout.grad_accum_steps == layout.grad_accum_steps &&
                    (layout.stages_per_rank == 1 || other.lowered->placement == lowered.placement) &&
                    other.lowered->actions == lowered.actions;
           });
  }

  void try_all() {
    for (Tried& tried : tried_) {
      for (const pipeline::LayerAssignment& layers : splits(tried)) {
        tried.layout.layers = layers;
        add(tried);
      }
    }
  }

  // A split that the job gives is kept where it fits; else even and by cost.
  std::vector<pipeline::LayerAssignment> splits(const Tried& tried) {
    std::vector<pipeline::LayerAssignment> result;
    const config::PipelineSplit& given = base_.job.distributed.pp_split;
    if (given.text != "cost") {
      try {
        result.push_back(split_layers(base_.job, tried.lowered->stages()));
      } catch (const UsageError&) {
      }
    }
    if (given.text == "cost" || given == config::PipelineSplit()) {
      const pipeline::LayerAssignment by_cost =
          cost_split(cost_model(tried.layout), base_.model, schedule::compute_only(*tried.lowered));
      if (result.empty() || result.front() != by_cost) result.push_back(by_cost);
    }
    return result;
  }

  CostModel cost_model(const Layout& layout) {
    Workload workload = workload_of(base_);
    workload.batch.documents = layout.micro_batch_size;
    return {dry_runs_, workload, source_.device, source_.calibration};
  }

  // And the same with stages that recompute more than the job says, where it does not fit.
  void add(Tried tried) {
    Plan plan = make_plan(base_, tried.layout, *tried.lowered);
    Prediction p = predict(plan, cost_model(tried.layout));
    add(tried, p);
    const bool may_recompute = options_.recompute && base_.chooses_recompute;
    if (found_.back().fits || !may_recompute) return;
    RecomputeChoice choice =
        choose_recompute(std::move(plan), std::move(p), source_, options_.budget, dry_runs_);
    tried.layout.recompute = std::move(choice.recompute);
    add(tried, choice.prediction);
  }

  void add(const Tried& tried, const Prediction& p) {
    found_.push_back({.layout = tried.layout,
                      .step_time = p.step_time,
                      .tokens_per_s = p.tokens_per_s,
                      .bytes = p.fullest(),
                      .fits = options_.budget <= 0 || static_cast<double>(p.peak_bytes()) <= options_.budget,
                      .lowered = tried.lowered,
                      .bubble = p.bubble()});
  }

  const PlanBase& base_;
  const CostSource& source_;
  const SearchOptions& options_;
  FootprintCache dry_runs_;
  std::vector<Tried> tried_;
  std::vector<Candidate> found_;
};

}  // namespace

double memory_budget(const PlanBase& base, const CostSource& source) {
  const double given = base.job.distributed.pp_memory_gb * 1e9;
  return given > 0 ? given : source.device.memory;
}

std::vector<Candidate> search(const PlanBase& base, const CostSource& source, const SearchOptions& options) {
  std::vector<Candidate> found = Searcher(base, source, options).run();
  if (found.empty()) {
    throw UsageError(fmt::format(
        "no schedule exists for {} pipeline ranks, {} layers and {} microbatches: use fewer ranks",
        base.mesh.pp, base.model.layers, base.job.train.grad_accum_steps));
  }
  return found;
}

}  // namespace pptrain::app

#include "app/forecast/search.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "app/forecast/prediction.h"
#include "app/forecast/stage_choices.h"
#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/search/search.h"

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

// distributed.pp_sequence_slices: the job's, or where it is 0 powers of two that leave slices of some length.
std::vector<int64_t> numbers_of_slices(const PlanBase& base, int64_t micro_batch_size) {
  constexpr int64_t most = 16, least_tokens = 64;
  const int64_t given = base.job.distributed.pp_sequence_slices;
  if (given > 0) return {given};
  std::vector<int64_t> result{1};
  const int64_t tokens = micro_batch_size * base.job.train.seq_len;
  while (base.mesh.pp > 1 && result.back() < most && tokens / (2 * result.back()) >= least_tokens)
    result.push_back(2 * result.back());
  return result;
}

class Searcher {
 public:
  Searcher(const PlanBase& base, const CostSource& source, const SearchOptions& options)
      : base_(base), source_(source), options_(options), dry_runs_(base.model) {}

  std::vector<Candidate> run() {
    find_schedules();
    try_all();
    sort();
    const bool searches = options_.order_effort > 0 && base_.mesh.pp > 1 && head_parts(base_) == 1 &&
                          base_.job.distributed.pp_sequence_slices <= 1;
    if (searches && !found_.empty()) search_orders();
    return std::move(found_);
  }

 private:
  void find_schedules() {
    const config::DistributedSection& d = base_.job.distributed;
    for (const auto& [size, count] : batchings(base_.job.train, options_.microbatches)) {
      for (const std::string& name : schedule::training_schedule_names()) {
        for (int64_t stages = 1; stages <= 4; ++stages) {
          if (d.pp_stages_per_rank > 0 && d.pp_stages_per_rank != stages) continue;
          if (d.pp * stages > base_.model.layers) continue;
          for (const int64_t slices : numbers_of_slices(base_, size)) {
            Candidate candidate{.layout = layout_of(base_), .bytes = {}};
            candidate.layout.micro_batch_size = size;
            candidate.layout.grad_accum_steps = count;
            candidate.layout.schedule = name;
            candidate.layout.sequence_slices = slices;
            candidate.layout.stages_per_rank = stages;
            add_schedule(std::move(candidate));
          }
        }
      }
    }
  }

  void add_schedule(Candidate candidate) {
    std::optional<schedule::Schedule> compute;
    try {
      compute = given_schedule(on_layout(base_, candidate.layout).job);
    } catch (const UsageError&) {
      return;  // the schedule does not exist for these numbers
    }
    const size_t words = candidate.layout.recompute.size();
    if (words > 1 && words != static_cast<size_t>(compute->stages())) return;  // the job gives it to others
    candidate.lowered = std::make_shared<const schedule::Schedule>(
        schedule::lower(*std::move(compute), lower_options(base_)));
    if (!has_twin(candidate.layout, *candidate.lowered)) tried_.push_back(std::move(candidate));
  }

  // Is the same list of actions there under another name, or one that does the same?
  bool has_twin(const Layout& layout, const schedule::Schedule& lowered) const {
    return (layout.stages_per_rank == 1 && schedule::repeats_with_one_stage(layout.schedule)) ||
           std::ranges::any_of(tried_, [&](const Candidate& other) {
             return other.layout.stages_per_rank == layout.stages_per_rank &&
                    other.layout.sequence_slices == layout.sequence_slices &&
                    other.layout.grad_accum_steps == layout.grad_accum_steps &&
                    (layout.stages_per_rank == 1 || other.lowered->placement == lowered.placement) &&
                    other.lowered->actions == lowered.actions;
           });
  }

  void try_all() {
    const config::HeadPlace head = base_.job.distributed.pp_head;
    for (Candidate& tried : tried_) {
      for (const bool spread : {false, true}) {
        if (spread && tried.layout.sequence_slices > 1) continue;
        if (head == (spread ? config::HeadPlace::last : config::HeadPlace::spread)) continue;
        tried.layout.spread_head = spread;
        for (const pipeline::LayerAssignment& layers : splits(tried)) {
          tried.layout.layers = layers;
          add(spread ? with_head_spread(tried) : tried);
        }
      }
    }
  }

  // The order of a spread head depends on the split.
  Candidate with_head_spread(Candidate tried) {
    schedule::Schedule compute = given_schedule(on_layout(base_, tried.layout).job);
    tried.lowered = std::make_shared<const schedule::Schedule>(schedule::lower(
        with_head(cost_model(tried), std::move(compute), tried.layout.layers), lower_options(base_)));
    return tried;
  }

  // A split that the job gives is kept where it fits; else even and by cost.
  std::vector<pipeline::LayerAssignment> splits(const Candidate& tried) {
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
          cost_split(cost_model(tried), base_.model, schedule::compute_only(*tried.lowered));
      if (result.empty() || result.front() != by_cost) result.push_back(by_cost);
    }
    return result;
  }

  CostModel cost_model(const Candidate& tried) {
    return {dry_runs_, on_layout(base_, tried.layout), source_};
  }

  // And the same with stages that recompute more than the job says, where it does not fit.
  void add(Candidate tried) {
    Plan plan = make_plan(base_, tried.layout, *tried.lowered);
    Prediction p = predict(plan, cost_model(tried));
    add(tried, p);
    if (found_.back().fits || !base_.chooses_recompute) return;
    RecomputeChoice choice =
        choose_recompute(std::move(plan), std::move(p), source_, options_.budget, dry_runs_);
    tried.layout.recompute = std::move(choice.recompute);
    add(tried, choice.prediction);
  }

  void add(const Candidate& tried, const Prediction& p) { found_.push_back(predicted(tried, p)); }

  Candidate predicted(Candidate found, const Prediction& p) const {
    found.step_time = p.step_time;
    found.tokens_per_s = p.tokens_per_s;
    found.bytes = p.fullest();
    found.fits = options_.budget <= 0 || static_cast<double>(p.peak_bytes()) <= options_.budget;
    found.bubble = p.bubble();
    return found;
  }

  void sort() {
    std::ranges::stable_sort(found_, {}, [](const Candidate& c) {
      return std::tuple(!c.fits, c.fits ? c.step_time : 0.0, c.bytes.total());
    });
  }

  // Short searches on the best layouts, then a longer one on the best of these.
  void search_orders() {
    constexpr int short_percent = 10;
    std::optional<Candidate> best;
    for (const Candidate& layout : layouts_to_search()) {
      const auto found = searched(layout, std::max(1, options_.order_effort * short_percent / 100));
      if (found && (!best || found->step_time < best->step_time)) best = found;
    }
    if (!best) return;
    const auto longer = searched(*best, options_.order_effort);
    if (longer && longer->step_time < best->step_time) best = longer;
    const Candidate& named = found_.front();
    if (named.fits && best->step_time >= (1 - options_.order_gain) * named.step_time) return;
    found_.push_back(*best);
    sort();
  }

  // Those of the first rows that differ in more than the order. Some that do not fit too: with another order
  // they may, and recompute less than those that do.
  std::vector<Candidate> layouts_to_search() const {
    constexpr size_t most_that_fit = 6, most = 10;
    std::vector<Candidate> chosen;
    for (const Candidate& c : found_) {
      if (c.layout.spread_head || c.layout.sequence_slices > 1) continue;
      const bool known =
          std::ranges::any_of(chosen, [&](const Candidate& other) { return same_shape(c, other); });
      if (!known && chosen.size() < (c.fits ? most_that_fit : most)) chosen.push_back(c);
    }
    return chosen;
  }

  static bool same_shape(const Candidate& a, const Candidate& b) {
    Layout layout = a.layout;
    layout.schedule = b.layout.schedule;
    return layout == b.layout &&
           (a.layout.stages_per_rank == 1 || a.lowered->placement == b.lowered->placement);
  }

  // Nothing where no order fits.
  std::optional<Candidate> searched(Candidate layout, int percent) {
    const CostModel costs = cost_model(layout);
    try {
      schedule::SearchResult found = schedule::search_schedule(search_problem(layout, costs), percent);
      layout.lowered = std::make_shared<const schedule::Schedule>(std::move(found.lowered));
    } catch (const UsageError&) {
      return std::nullopt;
    }
    layout.layout.schedule = "search";
    return predicted(layout, predict(make_plan(base_, layout.layout, *layout.lowered), costs));
  }

  schedule::SearchProblem search_problem(const Candidate& layout, const CostModel& costs) const {
    const schedule::Schedule& shape = *layout.lowered;
    const pipeline::LayerAssignment& layers = layout.layout.layers;
    schedule::SearchProblem problem{.shape = shape.without_actions(),
                                    .costs = simulation_costs(costs, layers, shape),
                                    .shard = costs.shard(),
                                    .post_validated = base_.job.optimizer.post_validation};
    for (int stage = 0; stage < shape.stages(); ++stage)
      problem.bytes.push_back(costs.of(layers, stage).bytes);
    if (options_.budget <= 0) return problem;
    const std::vector<RankBytes> ranks = rank_bytes(costs, layers, shape);
    const std::vector<schedule::MemorySplit> passes = schedule::peak_bytes(shape, problem.bytes);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t besides = ranks[rank].weights + ranks[rank].gradients - passes[rank].reducing +
                              ranks[rank].optimizer + ranks[rank].buffers - passes[rank].buffers;
      problem.room.push_back(static_cast<int64_t>(options_.budget) - besides);
    }
    return problem;
  }

  const PlanBase& base_;
  const CostSource& source_;
  const SearchOptions& options_;
  FootprintCache dry_runs_;
  std::vector<Candidate> tried_;  // without layers and figures
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

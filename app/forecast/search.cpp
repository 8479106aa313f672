#include "app/forecast/search.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/forecast/schedule_shapes.h"
#include "app/forecast/stage_choices.h"
#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/search/search.h"

namespace pptrain::app {

namespace {

// micro_batch_size x grad_accum_steps: the job's, or all with the same product.
std::vector<std::pair<int64_t, int64_t>> batchings(const config::TrainSection& train, bool all) {
  if (!all) return {{train.micro_batch_size, train.grad_accum_steps}};
  const int64_t samples = train.micro_batch_size * train.grad_accum_steps;
  std::vector<std::pair<int64_t, int64_t>> result;
  constexpr int64_t most = 1024;
  for (int64_t m = 1; m <= std::min(samples, most); ++m) {
    if (samples % m == 0) result.emplace_back(samples / m, m);
  }
  if (train.grad_accum_steps > most) result.emplace_back(train.micro_batch_size, train.grad_accum_steps);
  return result;
}

// distributed.pp_sequence_slices: the job's; if that is 0, powers of two that leave slices of some length.
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

// Counts S and T as parts of the passes of the rank's stages, so that an order leaves time for them.
void count_head(schedule::Costs& costs, const schedule::Schedule& shape) {
  const std::vector<schedule::StageCost> parts = costs.stages;  // of the head: [rank], of its first stage
  for (int stage = 0; stage < shape.stages(); ++stage) {
    const auto& part = parts[static_cast<size_t>(shape.rank_of(stage))].time;
    auto& own = costs.stages[static_cast<size_t>(stage)].time;
    own.forward += part.head_forward / shape.stages_per_rank;
    own.backward_input += part.head_backward / shape.stages_per_rank;
    own.backward += part.head_backward / shape.stages_per_rank;
  }
}

// Stages that make a step faster by less than this fraction are not better.
constexpr double worth_changing = 1e-4;

class Searcher {
 public:
  Searcher(const PlanBase& base, const CostSource& source, const SearchOptions& options)
      : base_(base), source_(source), options_(options), dry_runs_(base.model) {}

  std::vector<Candidate> run() {
    find_schedules();
    say("predicting the splits of {} schedules", tried_.size());
    try_all();
    sort();
    // An order is for one number of microbatches.
    const bool searches_orders = options_.order_effort > 0 && base_.job.train.grad_accum_schedule.empty();
    if (searches_orders && base_.mesh.pp > 1 && !found_.empty()) {
      say("searching orders of the best of {} layouts", found_.size());
      search_orders();
    }
    lower_microbatches();
    return std::move(found_);
  }

 private:
  void say(const char* what, size_t count) const {
    if (options_.progress) options_.progress(fmt::format(fmt::runtime(what), count));
  }

  void find_schedules() {
    const config::DistributedSection& d = base_.job.distributed;
    for (const auto& [size, count] : batchings(base_.job.train, options_.microbatches)) {
      for (const std::string& name : schedule::training_schedule_names()) {
        const int64_t given = d.pp_stages_per_rank;
        for (int64_t stages = given > 0 ? given : 1; stages <= (given > 0 ? given : 4); ++stages) {
          if (d.pp * stages > base_.model.layers) continue;
          for (const int64_t slices : numbers_of_slices(base_, size)) {
            Candidate candidate{.layout = layout_of(base_.job, base_.mesh), .bytes = {}};
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

  // Unless it does not exist for these numbers, or is the same list of actions as another one.
  void add_schedule(Candidate candidate) {
    const config::JobConfig job = on_layout(base_, candidate.layout).job;
    const schedule::ScheduleSpec spec = schedule_spec(job);
    const schedule::ShardOptions shard = lower_options(base_);
    const auto shape = shapes_.of(spec, shard);
    if (!shape || shapes_.repeats_another(spec, shard)) return;
    const size_t words = candidate.layout.recompute.words.size();
    if (words > 1 && words != static_cast<size_t>(shape->stages())) return;  // words for other stages
    candidate.lowered =
        std::make_shared<const schedule::Schedule>(schedule::lower(given_schedule(job), shard));
    tried_.push_back(std::move(candidate));
  }

  void try_all() {
    const config::HeadPlace head = base_.job.distributed.pp_head;
    for (Candidate& tried : tried_) {
      for (const bool spread : {false, true}) {
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

  // Keeps the job's split if it fits; else the even split and the one by cost.
  std::vector<pipeline::LayerAssignment> splits(const Candidate& tried) {
    std::vector<pipeline::LayerAssignment> result;
    if (!base_.job.distributed.pp_split.by_cost()) {
      try {
        result.push_back(split_layers(base_.job, tried.lowered->stages()));
      } catch (const UsageError&) {
      }
    }
    if (chooses_split()) {
      const pipeline::LayerAssignment by_cost =
          cost_split(cost_model(tried), base_.model, schedule::compute_only(*tried.lowered));
      if (result.empty() || result.front() != by_cost) result.push_back(by_cost);
    }
    return result;
  }

  bool chooses_split() const {
    const config::PipelineSplit& given = base_.job.distributed.pp_split;
    return given.by_cost() || given == config::PipelineSplit();
  }

  CostModel cost_model(const Candidate& tried) {
    return {dry_runs_, on_layout(base_, tried.layout), source_};
  }

  // Adds it; if it does not fit, also with stages that recompute more than the job says.
  void add(Candidate tried) {
    Plan plan = make_plan(base_, tried.layout, *tried.lowered);
    Prediction p = predict(plan, cost_model(tried));
    add(tried, p);
    if (found_.back().fits || !base_.chooses_recompute) return;
    const auto [more, prediction] =
        choose_recompute(std::move(plan), std::move(p), source_, options_.budget, dry_runs_);
    tried.layout.recompute = more.job.train.recompute;
    add(tried, prediction);
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

  // For layouts that fit because stages recompute more than the job's word.
  void lower_microbatches() {
    for (Candidate& c : found_) {
      if (!c.fits || c.layout.recompute == base_.job.train.recompute) continue;
      const auto finer =
          app::lower_microbatches(make_plan(base_, c.layout, *c.lowered), c.step_time,
                                  base_.job.train.recompute.most(0), source_, options_.budget, dry_runs_);
      if (!finer) continue;
      c.layout.recompute = finer->first.job.train.recompute;
      c = predicted(c, finer->second);
    }
    sort();
  }

  // Short searches on the best layouts and on single moves from the best of these; then a longer one.
  void search_orders() {
    constexpr int short_percent = 10, move_percent = 5;
    std::optional<Candidate> best;
    for (const Candidate& layout : layouts_to_search()) {
      if (best && !may_be_faster(layout, best->step_time)) continue;
      const auto found = searched(layout, std::max(1, options_.order_effort * short_percent / 100));
      if (found && (!best || found->step_time < best->step_time)) best = found;
    }
    // The stages of the fastest named schedule may still be better.
    const Candidate& named = found_.front();
    if (named.fits && (!best || named.step_time < best->step_time)) best = named;
    if (!best) return;
    improve_stages(*best, std::max(1, options_.order_effort * move_percent / 100));
    const auto longer = searched(*best, options_.order_effort);
    if (longer && longer->step_time < best->step_time) best = longer;
    if (named.fits && best->step_time >= (1 - options_.order_gain) * named.step_time) return;
    found_.push_back(*best);
    sort();
  }

  // Can any order of the layout's passes end sooner? For a spread head the bound does not hold.
  bool may_be_faster(const Candidate& layout, double step_time) {
    return base_.job.optimizer.post_validation || layout.layout.spread_head ||
           schedule::least_step_time(search_problem(layout, cost_model(layout))) < step_time;
  }

  // The first rows that differ in more than the order. Some of them do not fit: with another order they may,
  // and recompute less than those that do.
  std::vector<Candidate> layouts_to_search() const {
    constexpr size_t most_that_fit = 6, most = 10;
    std::vector<Candidate> chosen;
    for (const Candidate& c : found_) {
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

  // Alternates two steps while the time falls: moves layers and lowers recompute as far as the current order
  // has room; searches briefly for another order, for these stages and for some that need one.
  void improve_stages(Candidate& best, int percent) {
    constexpr int most_rounds = 5;
    constexpr int large = 1 << 14;  // stages x microbatches: beyond it a short search takes seconds
    if (best.lowered->cells() > large) return;
    for (int round = 0; round < most_rounds; ++round) {
      const Candidate climbed = with_better_stages(best);
      Candidate fastest = climbed;
      for (const Candidate& start : stages_to_search(climbed)) {
        const auto found = searched(start, percent);
        if (found && found->step_time < fastest.step_time) fastest = *found;
      }
      if (fastest.step_time >= (1 - worth_changing) * best.step_time) return;
      best = std::move(fastest);
    }
  }

  // These stages; the single moves that would shorten the order most if it had room for them; and more
  // recompute on one stage of the fullest rank, which makes room for another order.
  std::vector<Candidate> stages_to_search(const Candidate& best) {
    constexpr size_t most_moves = 2;
    std::vector<Candidate> stages{best};
    std::ranges::move(fastest_moves(best, most_moves), std::back_inserter(stages));
    if (base_.chooses_recompute && options_.budget > 0)
      std::ranges::move(recompute_moves(best, stages_of_fullest_rank(best), 1), std::back_inserter(stages));
    return stages;
  }

  // Improves by single moves under which the order fits and is faster.
  Candidate with_better_stages(Candidate best) {
    constexpr size_t most_tried = 8;
    const auto is_better = [&](Candidate& move) {
      move = predicted(move, predict(make_plan(base_, move.layout, *move.lowered), cost_model(move)));
      return move.fits && move.step_time < (1 - worth_changing) * best.step_time;
    };
    for (;;) {
      std::vector<Candidate> moves = fastest_moves(best, most_tried);
      const auto better = std::ranges::find_if(moves, is_better);
      if (better == moves.end()) return best;
      best = std::move(*better);
    }
  }

  // Moves of a layer, and, with a budget, moves to less recompute. Returns at most `most` of them, those with
  // the shortest time of the current order, the fastest first.
  std::vector<Candidate> fastest_moves(const Candidate& best, size_t most) {
    std::vector<Candidate> moves = layer_moves(best);
    if (base_.chooses_recompute && options_.budget > 0)
      std::ranges::move(recompute_moves(best, all_stages(*best.lowered), -1), std::back_inserter(moves));
    std::vector<std::pair<double, size_t>> times;
    for (const Candidate& move : moves) times.emplace_back(simulated(move).step_time, times.size());
    std::ranges::sort(times);
    std::vector<Candidate> fastest;
    for (const auto& [time, move] : times) {
      if (fastest.size() < most) fastest.push_back(std::move(moves[move]));
    }
    return fastest;
  }

  // Moves of a layer, if the job leaves the split open. With many stages only from the busiest rank's to the
  // idlest's.
  std::vector<Candidate> layer_moves(const Candidate& best) {
    constexpr int most_stages = 16;
    std::vector<Candidate> moves;
    if (!chooses_split()) return moves;
    std::vector<int> from = all_stages(*best.lowered), to = from;
    if (best.lowered->stages() > most_stages) {
      const std::vector<schedule::RankTime> ranks = simulated(best).ranks;
      const auto [idlest, busiest] = std::ranges::minmax_element(ranks, {}, &schedule::RankTime::busy);
      from = best.lowered->stages_of(static_cast<int>(busiest - ranks.begin()));
      to = best.lowered->stages_of(static_cast<int>(idlest - ranks.begin()));
    }
    for (pipeline::LayerAssignment& layers : app::layer_moves(best.layout.layers, from, to))
      moves.emplace_back(best).layout.layers = std::move(layers);
    return moves;
  }

  // One of the stages changes its recompute by so many levels.
  std::vector<Candidate> recompute_moves(const Candidate& best, std::span<const int> stages,
                                         int levels) const {
    std::vector<config::Recompute> recompute;
    for (const int stage : all_stages(*best.lowered)) recompute.push_back(best.layout.recompute.most(stage));
    std::vector<Candidate> moves;
    for (const int stage : stages) {
      const int changed = static_cast<int>(recompute[stage]) + levels;
      if (changed < 0 || changed > static_cast<int>(config::Recompute::full)) continue;
      std::vector<config::Recompute> moved = recompute;
      moved[stage] = static_cast<config::Recompute>(changed);
      moves.emplace_back(best).layout.recompute = config::Recomputation(moved);
    }
    return moves;
  }

  std::vector<int> stages_of_fullest_rank(const Candidate& c) {
    const std::vector<RankBytes> ranks = rank_bytes(cost_model(c), c.layout.layers, *c.lowered);
    const auto fullest = std::ranges::max_element(ranks, {}, &RankBytes::total);
    return c.lowered->stages_of(static_cast<int>(fullest - ranks.begin()));
  }

  // Simulates the current order.
  schedule::Simulation simulated(const Candidate& c) {
    return schedule::simulate(*c.lowered, simulation_costs(cost_model(c), c.layout.layers, *c.lowered));
  }

  // Nothing if no order fits. A spread head is added to the order found.
  std::optional<Candidate> searched(Candidate layout, int percent) {
    const CostModel costs = cost_model(layout);
    try {
      schedule::SearchResult found = schedule::search_schedule(search_problem(layout, costs), percent);
      if (layout.layout.spread_head)
        found.lowered =
            schedule::lower(with_head(costs, std::move(found.compute), layout.layout.layers), costs.shard());
      layout.lowered = std::make_shared<const schedule::Schedule>(std::move(found.lowered));
    } catch (const UsageError&) {
      return std::nullopt;
    }
    layout.layout.schedule = "search";
    layout = predicted(layout, predict(make_plan(base_, layout.layout, *layout.lowered), costs));
    return layout.fits ? std::optional(layout) : std::nullopt;
  }

  schedule::SearchProblem search_problem(const Candidate& layout, const CostModel& costs) const {
    const schedule::Schedule shape = schedule::whole_head(*layout.lowered);
    const pipeline::LayerAssignment& layers = layout.layout.layers;
    schedule::SearchProblem problem{.shape = shape.without_actions(),
                                    .costs = simulation_costs(costs, layers, shape),
                                    .shard = costs.shard(),
                                    .post_validated = base_.job.optimizer.post_validation};
    if (layout.layout.spread_head) count_head(problem.costs, shape);
    if (layout.is_order()) problem.start = schedule::compute_only(shape);
    for (int stage = 0; stage < shape.stages(); ++stage)
      problem.bytes.push_back(costs.of(layers, stage).bytes);
    if (options_.budget <= 0) return problem;
    const std::vector<RankBytes> ranks = rank_bytes(costs, layers, shape);
    const std::vector<schedule::MemorySplit> passes = schedule::peak_bytes(shape, problem.bytes),
                                             with_head = schedule::peak_bytes(*layout.lowered, problem.bytes);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t besides = ranks[rank].weights + ranks[rank].gradients - passes[rank].reducing +
                              ranks[rank].optimizer + ranks[rank].buffers - passes[rank].buffers +
                              with_head[rank].total() - passes[rank].total();
      problem.room.push_back(static_cast<int64_t>(options_.budget) - besides);
    }
    return problem;
  }

  const PlanBase& base_;
  const CostSource& source_;
  const SearchOptions& options_;
  FootprintCache dry_runs_;
  ScheduleShapes shapes_;
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
    const config::DistributedSection& d = base.job.distributed;
    std::string also;
    if (d.pp_stages_per_rank > 0)
      also += fmt::format(", distributed.pp_stages_per_rank = {}", d.pp_stages_per_rank);
    if (!d.pp_split.layers.empty())
      also += fmt::format(", distributed.pp_split of {} stages", d.pp_split.layers.size());
    if (const size_t words = base.job.train.recompute.words.size(); words > 1)
      also += fmt::format(", train.recompute of {} stages", words);
    throw UsageError(
        fmt::format("no schedule exists for {} pipeline ranks, {} layers and {} microbatches{}: {}",
                    base.mesh.pp, base.model.layers, base.job.train.grad_accum_steps, also,
                    also.empty() ? "use fewer ranks" : "leave out what is not needed of these"));
  }
  return found;
}

}  // namespace pptrain::app

#include "app/resolve/choose_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/search.h"
#include "app/forecast/stage_choices.h"
#include "app/forecast/step_costs.h"
#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

// Smallest gain, as a part of the step, for which auto takes a searched order or a spread head.
constexpr double least_gain = .01;

// Two numbers of bytes in GB, with enough decimals to tell them apart.
std::pair<std::string, std::string> in_unlike_gb(double a, double b) {
  constexpr int most_decimals = 9;  // single bytes
  std::pair<std::string, std::string> texts;
  for (int decimals = 2; decimals <= most_decimals && texts.first == texts.second; ++decimals)
    texts = {fmt::format("{:.{}f}", a / 1e9, decimals), fmt::format("{:.{}f}", b / 1e9, decimals)};
  return texts;
}

// A plan with all of the job that needs no choice.
std::optional<Plan> stand_in(PlanBase base) {
  Layout layout = layout_of(base.job, base.mesh);
  layout.schedule = "1f1b";
  layout.stages_per_rank = 1;
  layout.spread_head = false;
  layout.recompute = config::Recompute::none;
  schedule::Schedule lowered =
      schedule::lower(given_schedule(on_layout(base, layout).job), lower_options(base));
  layout.layers =
      pipeline::compute_layer_assignment(static_cast<int>(base.model.layers), lowered.stages(), 0, 0);
  Plan plan = make_plan(std::move(base), layout, std::move(lowered));
  plan.order = Order::awaited;
  return plan;
}

// The first of the ranking. But a whole head if the spread one, which rounds differently, gains too little.
const Candidate& first_choice(std::span<const Candidate> found) {
  const Candidate& first = found.front();
  if (!first.fits || !first.layout.spread_head) return first;
  const auto whole = std::ranges::find_if(found, [](const Candidate& c) { return !c.layout.spread_head; });
  if (whole == found.end() || !whole->fits) return first;
  return first.step_time < (1 - least_gain) * whole->step_time ? first : *whole;
}

// The best may be a named schedule if no order is better.
Plan searched_plan(const PlanBase& base, const Candidate& best, std::span<const Candidate> found) {
  Layout layout = best.layout;
  layout.schedule = "search";
  Plan plan = make_plan(base, layout, *best.lowered);
  plan.order = Order::searched;
  const auto named = std::ranges::find_if(
      found, [&](const Candidate& c) { return c.fits && !c.is_order() && c.layout.has_bits_of(layout); });
  if (named == found.end()) return plan;
  plan.named = named->layout.schedule;
  plan.named_ratio = named->step_time / best.step_time;
  return plan;
}

// Do stages recompute more than they would with enough memory, while steps differ in their microbatches? Not
// if data ranks exchange experts' rows, or anything in pairs, for which they must recompute alike, and not
// with sequence slices, which have other lengths.
bool chooses_in_steps(const PlanBase& base, const Candidate& best) {
  const bool alike = seen_by_passes(base.mesh).dp_shard > 1 ||
                     (best.lowered->has(schedule::ActionKind::overlapped_pair) && data_ranks_in_step(base));
  return best.layout.recompute != base.job.train.recompute &&
         best.layout.microbatches() == best.layout.grad_accum_steps &&
         base.job.data.lengths != config::Lengths::fixed && !alike;
}

// What costs decide. Everything given must outlive it.
class Chooser {
 public:
  Chooser(const PlanBase& base, const GivenPipeline& given, const config::ReportConflict& report)
      : base_(base),
        given_(given),
        report_(report),
        costs_(make_cost_source(base, base.job.distributed.pp_costs)),
        budget_(memory_budget(base, costs_)) {}

  // Nothing if a fault was reported.
  std::optional<Plan> choose() { return given_.compute ? with_given_schedule() : best_of_search(); }

 private:
  std::optional<Plan> best_of_search();
  Plan with_given_schedule();
  Plan with_given_schedule(config::HeadPlace head);

  const PlanBase& base_;
  const GivenPipeline& given_;
  const config::ReportConflict& report_;
  const CostSource costs_;
  const double budget_;  // bytes of a rank; 0: unlimited
};

// The best of the search; reports if no rank has room for it.
std::optional<Plan> Chooser::best_of_search() {
  const bool asked = schedule_choice(base_.job.distributed.pp_schedule) == ScheduleChoice::search;
  const std::vector<Candidate> found =
      search(base_, costs_,
             {.budget = budget_, .order_effort = asked ? 75 : 10, .order_gain = asked ? 0 : least_gain});
  const Candidate& best = first_choice(found);
  if (best.fits) {
    const bool searched = asked || best.is_order();
    Plan plan = searched ? searched_plan(base_, best, found) : make_plan(base_, best.layout, *best.lowered);
    if (!searched && plan.compute.spread_head) plan.order = Order::spread;
    if (chooses_in_steps(base_, best)) plan.recompute_memory = budget_;
    return plan;
  }
  const bool could_recompute =
      !base_.chooses_recompute && base_.job.train.recompute != config::Recompute::full;
  const auto [given, needed] = in_unlike_gb(budget_, static_cast<double>(best.bytes.total()));
  report_({"distributed.pp_memory_gb", "distributed.pp_schedule", "distributed.pp"},
          fmt::format("no schedule fits into {} GB a rank: the leanest, {} with recompute = \"{}\", "
                      "needs {} GB. Use more ranks, or smaller microbatches{}",
                      given, best.layout.schedule, best.layout.recompute_text(), needed,
                      could_recompute ? ", or train.recompute = \"auto\"" : ""));
  return std::nullopt;
}

// Takes the better place of the head, if the job leaves it open.
Plan Chooser::with_given_schedule() {
  const config::HeadPlace given = base_.job.distributed.pp_head;
  if (given != config::HeadPlace::automatic) return with_given_schedule(given);
  Plan whole = with_given_schedule(config::HeadPlace::last);
  Plan spread = with_given_schedule(config::HeadPlace::spread);
  const Prediction of_whole = predict(whole, costs_), of_spread = predict(spread, costs_);
  const auto fits = [&](const Prediction& p) {
    return budget_ <= 0 || static_cast<double>(p.peak_bytes()) <= budget_;
  };
  if (fits(of_whole) != fits(of_spread)) return fits(of_whole) ? whole : spread;
  return of_spread.step_time < (1 - least_gain) * of_whole.step_time ? spread : whole;
}

Plan Chooser::with_given_schedule(config::HeadPlace head) {
  PlanBase base = base_;
  base.job.distributed.pp_head = head;
  const CostModel costs(base, costs_);
  Layout layout = layout_of(base.job, base.mesh);
  layout.layers = given_.layers ? *given_.layers : cost_split(costs, base.model, *given_.compute);
  schedule::Schedule compute = with_head(costs, *given_.compute, layout.layers);
  const bool finds_order = compute.spread_head && !given_.compute->spread_head;
  Plan plan = make_plan(base, layout, schedule::lower(std::move(compute), lower_options(base)));
  if (finds_order) plan.order = Order::spread;
  return plan;
}

}  // namespace

std::optional<Plan> choose_plan(PlanBase base, GivenPipeline given, bool awaits_choices,
                                const config::ReportConflict& report) {
  config::Word<config::HeadPlace>& head = base.job.distributed.pp_head;
  // If a file has passes of a spread head, the head is spread, unless the job wants it on the last stage.
  const bool spread_by_file = given.compute && given.compute->spread_head;
  if (spread_by_file && head == config::HeadPlace::last) given.compute = schedule::whole_head(*given.compute);
  if (spread_by_file && head == config::HeadPlace::automatic) head = config::HeadPlace::spread;
  const bool head_is_placed = head == config::HeadPlace::last || base.mesh.pp == 1 || spread_by_file;
  if (given.compute && given.layers && head_is_placed) {
    schedule::Schedule lowered = schedule::lower(*given.compute, lower_options(base));
    return make_plan(std::move(base), std::move(lowered), *given.layers);
  }
  if (awaits_choices) return stand_in(std::move(base));
  try {
    return Chooser(base, given, report).choose();
  } catch (const UsageError& error) {
    report({"distributed.pp_costs", "distributed.pp_schedule", "distributed.pp_split", "distributed.pp"},
           error.what());
    return std::nullopt;
  }
}

}  // namespace pptrain::app

#include "app/resolve/load_plan.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "app/forecast/search.h"
#include "app/forecast/stage_choices.h"
#include "app/plan/plan.h"
#include "app/plan/run_files.h"
#include "app/resolve/job_checks.h"
#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/given_job.h"
#include "core/config/loader.h"
#include "core/config/nearest.h"
#include "models/hf_directory.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

using config::JobConfig;
using config::ReportConflict;

constexpr const char* schedule_key = "distributed.pp_schedule";
constexpr const char* stages_key = "distributed.pp_stages_per_rank";
constexpr const char* split_key = "distributed.pp_split";

// Smallest gain, as a part of the step, for which auto takes a searched order or a spread head.
constexpr double least_gain = .01;

// Is the schedule unknown until costs are known?
bool is_open(ScheduleChoice choice) {
  return choice == ScheduleChoice::automatic || choice == ScheduleChoice::search;
}

// Two numbers of bytes in GB, with enough decimals to tell them apart.
std::pair<std::string, std::string> in_unlike_gb(double a, double b) {
  constexpr int most_decimals = 9;  // single bytes
  std::pair<std::string, std::string> texts;
  for (int decimals = 2; decimals <= most_decimals && texts.first == texts.second; ++decimals)
    texts = {fmt::format("{:.{}f}", a / 1e9, decimals), fmt::format("{:.{}f}", b / 1e9, decimals)};
  return texts;
}

// The plain name of a schedule that trains; nothing, and a report, if there is none.
std::optional<std::string> schedule_name(const std::string& given, const ReportConflict& report) {
  const std::vector<std::string> names = schedule::training_schedule_names();
  try {
    std::string name = schedule::canonical_schedule_name(given);
    if (std::ranges::find(names, name) != names.end()) return name;
    report({schedule_key}, fmt::format("\"{}\" has forward passes alone: it cannot train", name));
  } catch (const UsageError& error) {
    const bool by_option = schedule::is_schedule_by_option(given);
    std::string guess = config::nearest(given, names);
    if (!guess.empty()) guess = '"' + guess + '"';
    report({schedule_key},
           by_option ? error.what()
                     : fmt::format(
                           "\"{}\" is not a schedule{} Valid: {}, auto, search, or a file ending in .csv",
                           given, guess.empty() ? "." : config::did_you_mean(guess), fmt::join(names, ", ")));
  }
  return std::nullopt;
}

// The generator's error says what its schedule does not allow.
std::optional<schedule::Schedule> generate(const schedule::ScheduleSpec& spec, std::string& reason) {
  try {
    return schedule::make_schedule(spec);
  } catch (const UsageError& error) {
    reason = error.what();
    return std::nullopt;
  }
}

// Turns one job into its plan: first checks and fills in what it says of the pipeline, then chooses.
class Resolver {
 public:
  Resolver(JobConfig& job, const ReportConflict& report, bool sound)
      : job_(job), sound_(sound), report_([this, &report](auto options, const std::string& text) {
          sound_ = false;
          report(options, text);
        }) {}

  void check() {
    check_schedule();
    check_batch_steps();
    check_split();
    report_recompute(job_, compute_ ? std::optional(compute_->stages()) : std::nullopt, report_);
  }

  // For a job whose schedule, stages per rank and microbatches the search chooses: its schedule must be a
  // valid name, but need not exist for the job's microbatches.
  void check_for_search() {
    config::DistributedSection& d = job_.distributed;
    if (schedule_choice(d.pp_schedule) == ScheduleChoice::name) schedule_name(d.pp_schedule, report_);
    d.pp_schedule = "auto";
    check_split();
    report_recompute(job_, std::nullopt, report_);
  }

  // Nothing if a fault was reported. `awaits_choices`: of LoadOptions.
  std::optional<Plan> plan(bool awaits_choices);

 private:
  void check_schedule();
  bool is_too_long();
  void check_batch_steps();
  void check_file();
  void check_split();
  void settle_head(PlanBase& base);
  std::optional<Plan> stand_in(PlanBase base);
  std::optional<Plan> choose(const PlanBase& base, const CostSource& costs);
  std::optional<Plan> best_plan(const PlanBase& base, const CostSource& costs);
  static const Candidate& first_choice(std::span<const Candidate> found);
  static bool chooses_in_steps(const PlanBase& base, const Candidate& best);
  static Plan searched_plan(const PlanBase& base, const Candidate& best, std::span<const Candidate> found);
  Plan plan_by_cost(PlanBase base, const CostSource& source, config::HeadPlace head);
  Plan plan_by_cost(const PlanBase& base, const CostSource& source);

  JobConfig& job_;
  bool sound_;
  ReportConflict report_;
  std::optional<schedule::Schedule> compute_;        // none with auto and search
  std::optional<pipeline::LayerAssignment> layers_;  // none with auto, search or cost
};

// Lists of actions are made, proven and walked one by one: here a surplus digit is found before it takes
// hours.
bool Resolver::is_too_long() {
  constexpr int64_t max_passes = int64_t{1} << 21;
  const config::DistributedSection& d = job_.distributed;
  const int64_t microbatches = job_.train.grad_accum_steps * d.slices();
  const int64_t stages = std::max<int64_t>(1, d.pp) * std::max<int64_t>(1, d.pp_stages_per_rank);
  if (microbatches <= max_passes / stages) return false;
  report_({"train.grad_accum_steps", "distributed.pp", stages_key},
          fmt::format("{} microbatches through {} stages: a schedule has {} forward passes at most. Use "
                      "larger microbatches, or more data ranks",
                      microbatches, stages, max_passes));
  return true;
}

void Resolver::check_schedule() {
  config::DistributedSection& d = job_.distributed;
  if (is_too_long()) return;
  const ScheduleChoice choice = schedule_choice(d.pp_schedule);
  if (is_open(choice)) {
    d.pp_schedule = choice == ScheduleChoice::automatic ? "auto" : "search";
    return;
  }
  if (choice == ScheduleChoice::file) return check_file();
  const std::optional<std::string> name = schedule_name(d.pp_schedule, report_);
  if (!name) return;
  d.pp_schedule = *name;
  std::string reason, ignored;
  schedule::ScheduleSpec spec = schedule_spec(job_);
  compute_ = generate(spec, reason);
  if (compute_) {
    d.pp_stages_per_rank = compute_->stages_per_rank;
    return;
  }
  // To find whether the number of stages per rank is the fault, leaves it to the schedule.
  const bool stages_given = std::exchange(spec.stages_per_rank, 0) != 0;
  if (stages_given && generate(spec, ignored)) {
    report_({stages_key, schedule_key}, reason);
  } else {
    report_({"train.grad_accum_steps", "distributed.pp", schedule_key}, reason);
  }
}

// The job's schedule must exist for every number of microbatches.
void Resolver::check_batch_steps() {
  const std::vector<config::BatchStep>& steps = job_.train.grad_accum_schedule;
  if (steps.empty() || !sound_) return;
  if (schedule_choice(job_.distributed.pp_schedule) != ScheduleChoice::name) {
    report_({schedule_key, "train.grad_accum_schedule"},
            fmt::format("{} has orders for one number of microbatches: train.grad_accum_schedule needs a "
                        "schedule's name, such as \"1f1b\"",
                        job_.distributed.pp_schedule));
    return;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    JobConfig later = job_;
    later.train.grad_accum_steps = steps[i].grad_accum_steps;
    const ReportConflict of_entry = [&](auto, const std::string& text) {
      report_({fmt::format("train.grad_accum_schedule[{}].grad_accum_steps", i), schedule_key}, text);
    };
    Resolver of_step(later, of_entry, /*sound=*/true);
    of_step.check_schedule();
  }
}

// Reads the file and compares it with the job.
void Resolver::check_file() {
  config::DistributedSection& d = job_.distributed;
  const auto differs = [&](std::string_view key, int64_t given, int in_file, const char* what) {
    if (given == in_file) return;
    report_({key, schedule_key},
            fmt::format("{} = {}, but the schedule in {} has {} {}", key.substr(key.rfind('.') + 1), given,
                        d.pp_schedule, in_file, what));
  };
  try {
    compute_ = given_schedule(job_);
    if (compute_->forward_only)
      report_({schedule_key}, fmt::format("{} has forward passes alone: it cannot train", compute_->name));
    differs("distributed.pp", d.pp, compute_->ranks, "ranks");
    differs("train.grad_accum_steps", job_.train.grad_accum_steps * compute_->sequence_slices,
            compute_->microbatches, "microbatches, sequence slices counted");
    if (d.pp_stages_per_rank == 0) d.pp_stages_per_rank = compute_->stages_per_rank;
    differs(stages_key, d.pp_stages_per_rank, compute_->stages_per_rank, "stages per rank");
  } catch (const UsageError& error) {
    report_({schedule_key}, error.what());
  }
}

void Resolver::check_split() {
  config::DistributedSection& d = job_.distributed;
  if (config::to_lower(d.pp_split.text) == "cost") {
    d.pp_split.text = "cost";
    return;
  }
  if (is_open(schedule_choice(d.pp_schedule))) return;
  if (job_.model.num_hidden_layers == 0 || d.pp_stages_per_rank == 0) return;  // reported already
  try {
    layers_ = split_layers(job_, static_cast<int>(d.pp * d.pp_stages_per_rank));
  } catch (const UsageError& error) {
    report_({split_key, "distributed.pp", stages_key, "model.num_hidden_layers", "model.hf_dir"},
            fmt::format("{} (distributed.pp = {} ranks of {} stage{})", error.what(), d.pp,
                        d.pp_stages_per_rank, d.pp_stages_per_rank == 1 ? "" : "s"));
  }
}

// If a file has passes of a spread head, the head is spread, unless the job wants it on the last stage.
void Resolver::settle_head(PlanBase& base) {
  config::Word<config::HeadPlace>& head = base.job.distributed.pp_head;
  if (head == config::HeadPlace::last) compute_ = schedule::whole_head(*compute_);
  if (head == config::HeadPlace::automatic) head = config::HeadPlace::spread;
}

std::optional<Plan> Resolver::plan(bool awaits_choices) {
  if (!sound_) return std::nullopt;
  PlanBase base = plan_base(job_);
  report_learning(job_, base.model, report_);
  report_heads(job_, base.model, report_);
  report_fp8(job_, base.model, report_);
  check_samples(job_, base.model, report_);
  if (!sound_) return std::nullopt;
  if (compute_ && compute_->spread_head) settle_head(base);
  const bool head_is_placed = base.job.distributed.pp_head == config::HeadPlace::last || base.mesh.pp == 1 ||
                              (compute_ && compute_->spread_head);
  if (compute_ && layers_ && head_is_placed) {
    schedule::Schedule lowered = schedule::lower(*compute_, lower_options(base));
    return make_plan(std::move(base), std::move(lowered), *layers_);
  }
  if (awaits_choices) return stand_in(std::move(base));
  try {
    return choose(base, make_cost_source(base, job_.distributed.pp_costs));
  } catch (const UsageError& error) {
    report_({"distributed.pp_costs", schedule_key, split_key, "distributed.pp"}, error.what());
    return std::nullopt;
  }
}

// A plan with all of the job that needs no choice.
std::optional<Plan> Resolver::stand_in(PlanBase base) {
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

std::optional<Plan> Resolver::choose(const PlanBase& base, const CostSource& costs) {
  return compute_ ? plan_by_cost(base, costs) : best_plan(base, costs);
}

// The best of the search; reports if no rank has room for it.
std::optional<Plan> Resolver::best_plan(const PlanBase& base, const CostSource& costs) {
  const double budget = memory_budget(base, costs);
  const bool asked = schedule_choice(base.job.distributed.pp_schedule) == ScheduleChoice::search;
  const std::vector<Candidate> found = search(
      base, costs, {.budget = budget, .order_effort = asked ? 75 : 10, .order_gain = asked ? 0 : least_gain});
  const Candidate& best = first_choice(found);
  if (best.fits) {
    const bool searched = asked || best.is_order();
    Plan plan = searched ? searched_plan(base, best, found) : make_plan(base, best.layout, *best.lowered);
    if (!searched && plan.compute.spread_head) plan.order = Order::spread;
    if (chooses_in_steps(base, best)) plan.recompute_memory = budget;
    return plan;
  }
  const bool could_recompute = !base.chooses_recompute && base.job.train.recompute != config::Recompute::full;
  const auto [given, needed] = in_unlike_gb(budget, static_cast<double>(best.bytes.total()));
  report_({"distributed.pp_memory_gb", schedule_key, "distributed.pp"},
          fmt::format("no schedule fits into {} GB a rank: the leanest, {} with recompute = \"{}\", "
                      "needs {} GB. Use more ranks, or smaller microbatches{}",
                      given, best.layout.schedule, best.layout.recompute_text(), needed,
                      could_recompute ? ", or train.recompute = \"auto\"" : ""));
  return std::nullopt;
}

// The first of the ranking. But a whole head if the spread one, which rounds differently, gains too little.
const Candidate& Resolver::first_choice(std::span<const Candidate> found) {
  const Candidate& first = found.front();
  if (!first.fits || !first.layout.spread_head) return first;
  const auto whole = std::ranges::find_if(found, [](const Candidate& c) { return !c.layout.spread_head; });
  if (whole == found.end() || !whole->fits) return first;
  return first.step_time < (1 - least_gain) * whole->step_time ? first : *whole;
}

// The best may be a named schedule if no order is better.
Plan Resolver::searched_plan(const PlanBase& base, const Candidate& best, std::span<const Candidate> found) {
  Layout layout = best.layout;
  layout.schedule = "search";
  Plan plan = make_plan(base, layout, *best.lowered);
  plan.order = Order::searched;
  const auto named = std::ranges::find_if(found, [&](const Candidate& c) {
    return c.fits && !c.is_order() && c.layout.spread_head == layout.spread_head &&
           c.layout.sequence_slices == layout.sequence_slices;
  });
  if (named == found.end()) return plan;
  plan.named = named->layout.schedule;
  plan.named_time = named->step_time;
  return plan;
}

// Takes the better place of the head, if the job leaves it open.
Plan Resolver::plan_by_cost(const PlanBase& base, const CostSource& source) {
  const config::HeadPlace given = base.job.distributed.pp_head;
  if (given != config::HeadPlace::automatic) return plan_by_cost(base, source, given);
  Plan whole = plan_by_cost(base, source, config::HeadPlace::last);
  Plan spread = plan_by_cost(base, source, config::HeadPlace::spread);
  const Prediction of_whole = predict(whole, source), of_spread = predict(spread, source);
  const double budget = memory_budget(base, source);
  const auto fits = [&](const Prediction& p) {
    return budget <= 0 || static_cast<double>(p.peak_bytes()) <= budget;
  };
  if (fits(of_whole) != fits(of_spread)) return fits(of_whole) ? whole : spread;
  return of_spread.step_time < (1 - least_gain) * of_whole.step_time ? spread : whole;
}

Plan Resolver::plan_by_cost(PlanBase base, const CostSource& source, config::HeadPlace head) {
  base.job.distributed.pp_head = head;
  const CostModel costs(base, source);
  Layout layout = layout_of(base.job, base.mesh);
  layout.layers = layers_ ? *layers_ : cost_split(costs, base.model, *compute_);
  schedule::Schedule compute = with_head(costs, *compute_, layout.layers);
  const bool finds_order = compute.spread_head && !compute_->spread_head;
  Plan plan = make_plan(base, layout, schedule::lower(std::move(compute), lower_options(base)));
  if (finds_order) plan.order = Order::spread;
  return plan;
}

// Do stages recompute more than they would with enough memory, while steps differ in their microbatches? Not
// if data ranks exchange experts' rows, for which they must recompute alike, and not with sequence slices,
// which have other lengths.
bool Resolver::chooses_in_steps(const PlanBase& base, const Candidate& best) {
  return best.layout.recompute != base.job.train.recompute && best.layout.sequence_slices == 1 &&
         base.job.data.lengths != config::Lengths::fixed && seen_by_passes(base.mesh).dp_shard == 1;
}

using FinishJob = decltype(config::Hooks::finish);

config::Hooks hooks(FinishJob finish, const LoadOptions& options) {
  return {.read_hf_config = models::read_hf_model,
          .finish_model = models::finish_model,
          .finish = std::move(finish),
          .world = options.world,
          .needs_files = options.needs_files};
}

// Nothing if a fault was reported.
std::optional<Plan> resolve(JobConfig& job, const ReportConflict& report, bool sound,
                            const LoadOptions& options) {
  Resolver resolver(job, report, sound);
  resolver.check();
  std::optional<Plan> plan = resolver.plan(options.awaits_choices);
  if (plan) report_gpu_blocks(*plan, report);
  return plan;
}

// Reduces the pipeline to what forward passes need: a stage on each rank.
void simplify_pipeline(JobConfig& job) {
  config::DistributedSection& d = job.distributed;
  d.pp_schedule = "gpipe";  // takes any number of microbatches
  d.pp_stages_per_rank = 0;
  d.pp_split = {};
  d.pp_head = config::HeadPlace::last;
  d.settle_slices();
  d.pp_embedding_weight = d.pp_head_weight = d.pp_memory_gb = 0;
  job.train.recompute = config::Recompute::none;
}

// For a job that does not train.
std::optional<Plan> resolve_for_reading(JobConfig& job, const ReportConflict& report, bool sound,
                                        const LoadOptions& options) {
  if (sound) {
    JobConfig trained = job;
    if (auto plan = resolve(
            trained, [](auto, const std::string&) {}, sound, options))
      return plan;
    simplify_pipeline(job);
  }
  return resolve(job, report, sound, options);
}

// Leaves the plan in `plan` unless there are faults, which the loader then throws.
FinishJob resolve_into(std::optional<Plan>& plan, const LoadOptions& options,
                       const std::optional<RunChoices>& choices) {
  return [&](JobConfig& job, const ReportConflict& report, bool sound) {
    const bool whole_head = !options.trains && job.distributed.pp_head == config::HeadPlace::last;
    if (choices) choices->take(job, whole_head ? "distributed.pp_head" : "");
    plan = options.trains ? resolve(job, report, sound, options)
                          : resolve_for_reading(job, report, sound, options);
    if (plan) plan->reads_data = options.reads_data;
    if (plan && options.inspect) options.inspect(*plan, report);
  };
}

// `read`: reads a job, given hooks and the value of an absent warmup_steps.
template <class Read>
Plan plan_of(const Read& read, const LoadOptions& options) {
  std::optional<Plan> plan;
  const std::optional<RunChoices> choices =
      options.choices_of.empty() ? std::nullopt : RunChoices::read(options.choices_of);
  config::Hooks with = hooks(resolve_into(plan, options, choices), options);
  if (choices && options.world == 0) with.world = choices->world_size();
  config::GivenJob given = read(with, choices ? choices->warmup_steps() : std::nullopt);
  if (options.world != 0)
    (options.of_processes ? mesh::check_processes : mesh::check_world_size)(plan->mesh,
                                                                            static_cast<int>(options.world));
  plan->given = std::move(given.given);
  plan->notes = std::move(given.notes);
  return *std::move(plan);
}

// The longest pipeline that has fewer ranks than the job's and a process for each, and whether `load` takes
// it without choices: every process asks alike. Nothing if there is none.
template <class Load>
std::optional<int> fitting_pp(const Plan& plan, int processes, const Load& load) {
  const int of_stage = plan.mesh.world_size() / plan.mesh.pp;
  if (processes >= plan.mesh.world_size() || plan.bits_depend_on_pp) return std::nullopt;
  for (int pp = processes / of_stage; pp >= 1; --pp) {
    try {
      load(pp, /*awaits_choices=*/true);
      return pp;
    } catch (const UsageError&) {
      // This length does not fit the job's schedule, split or microbatches.
    }
  }
  return std::nullopt;
}

std::string describe_fit(const Plan& plan, const Plan& fitted, int processes) {
  const int spare = fitted.spare_processes;
  return fmt::format(
      "{} ranks, but {} process{}: the pipeline has {} rank{} instead of {}, with the same bits{}",
      plan.mesh.world_size(), processes, processes == 1 ? "" : "es", fitted.mesh.pp,
      fitted.mesh.pp == 1 ? "" : "s", plan.mesh.pp,
      spare == 0 ? "" : fmt::format("; {} process{} spare", spare, spare == 1 ? " is" : "es are"));
}

}  // namespace

Plan load_plan(const std::string& path, std::span<const std::string> overrides, const LoadOptions& options) {
  // pp: instead of the job's; 0: the job's.
  const auto load = [&](int pp, bool awaits_choices) {
    std::vector<std::string> set(overrides.begin(), overrides.end());
    LoadOptions with_options = options;
    with_options.awaits_choices = awaits_choices;
    if (options.gives_logits) set.push_back(config::by_command("distributed.pp_head=last"));
    if (pp > 0) {
      set.push_back(fmt::format("distributed.pp={}", pp));
      with_options.world = 0;
    }
    return plan_of([&](const config::Hooks& with,
                       auto warmup) { return config::load_given_job(path, set, with, warmup); },
                   with_options);
  };
  if (!options.fits_pipeline) return load(0, options.awaits_choices);
  Plan plan = load(0, /*awaits_choices=*/true);
  const auto processes = static_cast<int>(options.world);
  const std::optional<int> pp = fitting_pp(plan, processes, load);
  if (!pp) return plan.order == Order::awaited ? load(0, options.awaits_choices) : plan;
  Plan fitted = load(*pp, options.awaits_choices);
  fitted.full_ranks = plan.mesh.world_size();
  fitted.spare_processes = processes - fitted.mesh.world_size();
  fitted.given = std::move(plan.given);
  fitted.notes.push_back(describe_fit(plan, fitted, processes));
  return fitted;
}

Plan parse_plan(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                const LoadOptions& options) {
  return plan_of([&](const config::Hooks& with,
                     auto warmup) { return config::parse_given_job(text, name, overrides, with, warmup); },
                 options);
}

PlanBase load_plan_base(const std::string& path, std::span<const std::string> overrides,
                        const LoadOptions& options) {
  return plan_base(config::load_job(path, overrides,
                                    hooks([](JobConfig& job, const ReportConflict& report,
                                             bool sound) { Resolver(job, report, sound).check_for_search(); },
                                          options)));
}

}  // namespace pptrain::app

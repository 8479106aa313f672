// pptrain plan
#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/forecast/best_job.h"
#include "app/forecast/costs.h"
#include "app/forecast/device_model.h"
#include "app/forecast/memory_fit.h"
#include "app/forecast/plan_report.h"
#include "app/forecast/prediction.h"
#include "app/forecast/search.h"
#include "app/forecast/search_report.h"
#include "app/forecast/step_costs.h"
#include "app/launch/memory_check.h"
#include "app/resolve/load_plan.h"
#include "app/trace/trace_file.h"
#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/config/loader.h"
#include "core/config/options.h"
#include "core/config/word.h"
#include "core/io/atomic_file.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {
enum class PlanFormat { text, csv, json, svg, trace };
}  // namespace pptrain::app

template <>
inline constexpr std::array pptrain::config::words<pptrain::app::PlanFormat> =
    std::to_array<std::string_view>({"text", "csv", "json", "svg", "trace"});

namespace pptrain::app {

namespace {

struct PlanArguments : JobArguments {
  config::Word<PlanFormat> format = PlanFormat::text;
  bool actions = false;  // json: every action with its times too
  std::string after;     // the name of a pass of lowering
  std::string output;    // file; empty: standard output
  // "measured", "modelled", a device's name or a trace, instead of distributed.pp_costs; empty: measured on a
  // CPU
  std::string costs;
  std::string compare;   // a trace or another job to compare with
  bool search = false;   // rank all layouts of the job; with `world`, of all meshes of so many ranks
  bool all = false;      // all rows of a search, all ranks of a plan
  double memory_gb = 0;  // GB a rank, instead of distributed.pp_memory_gb
  double cores = 0;      // of a host of CPU ranks; 0: those that this process may use
  int processes = 0;     // as if so many were launched; 0: one a rank
  double margin = 5;     // search: % of a rank's memory that stays free
  std::string write;     // search: file for the job of the row `pick`, from 1
  size_t pick = 0;       // 0: the best
  JobRates rates;
};

// Columns of the text: as given by COLUMNS or the terminal, within readable limits. Elsewhere always the
// same, so that output can be compared.
int text_width(bool on_terminal) {
  constexpr int narrowest = 80, widest = 200, elsewhere = 100;
  const char* const given = std::getenv("COLUMNS");
  int columns = given ? std::atoi(given) : 0;
  winsize size{};
  if (columns <= 0 && on_terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  return columns > 0 ? std::clamp(columns, narrowest, widest) : elsewhere;
}

schedule::TextOptions text_options(const PlanArguments& arguments) {
  const bool on_terminal = arguments.output.empty() && isatty(STDOUT_FILENO) != 0;
  return {.colour = on_terminal && std::getenv("NO_COLOR") == nullptr, .width = text_width(on_terminal)};
}

// Bytes that a rank may use.
double room_of(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  return arguments.memory_gb > 0 ? arguments.memory_gb * 1e9 : memory_budget(base, source);
}

// Does the plan fit the GPU, or this host? Uses the function that check and a start use.
PlanContext context_of(const PlanArguments& arguments, const Plan& plan, const Prediction& p,
                       const CostSource& source, int64_t program) {
  const double room = room_of(arguments, plan, source);
  const bool given = arguments.memory_gb > 0 || plan.job.distributed.pp_memory_gb > 0;
  PlanContext context =
      app::context_of(plan, p, source, room, given ? "it" : fmt::format("one {}", source.device.name));
  const std::optional<int64_t> available = available_memory();
  if (room <= 0 && source.device.is_cpu && plan.job.run.device == config::Device::cpu && available)
    context.fit = fit_on_host(plan, p.bytes, program, static_cast<double>(*available));
  context.rates = arguments.rates;
  context.all_ranks = arguments.all;
  return context;
}

// In every format: a launch would refuse it.
void check_processes(const PlanArguments& arguments, const Plan& plan) {
  const int ranks = plan.mesh.world_size();
  if (arguments.processes == 0 || arguments.processes >= ranks || plan.job.run.device == config::Device::cpu)
    return;
  throw UsageError(fmt::format("--processes {}: on GPUs each of the {} ranks needs a process",
                               arguments.processes, ranks));
}

// How the plan lies on --processes, with the memory of the largest one.
std::string describe_processes(const PlanArguments& arguments, const Plan& plan, const Prediction& p) {
  const int ranks = plan.mesh.world_size(), processes = arguments.processes - plan.spare_processes;
  if (arguments.processes == 0) return "";
  std::string text;
  for (const std::string& note : plan.notes) text += note + '\n';
  if (processes == ranks) return text;
  int64_t most = 0;
  for (int process = 0; process < processes; ++process) {
    const mesh::Block block = mesh::block_of(process, processes, ranks);
    int64_t bytes = 0;
    for (int rank = block.first; rank < block.end; ++rank)
      bytes += p.bytes.at(static_cast<size_t>(mesh::coordinate(plan.mesh, rank, mesh::Axis::pp))).total();
    most = std::max(most, bytes);
  }
  return text + fmt::format("{}; memory of a process: at most {:.3f} GB, beside the program's\n",
                            mesh::describe_blocks(processes, ranks), static_cast<double>(most) / 1e9);
}

std::string render(const PlanArguments& arguments, const Plan& plan, const CostSource& source,
                   int64_t program) {
  const CostModel costs(plan, source);
  Prediction p = predict(plan, costs);
  if (plan.job.run.device == config::Device::cpu) p.program_bytes = program;
  p.lengths = forecast_lengths(plan, p);
  if (arguments.format == PlanFormat::svg)
    return schedule::render_svg(plan.schedule, p.pipeline, /*seconds=*/true);
  if (arguments.format == PlanFormat::trace) return schedule::render_trace(plan.schedule, p.pipeline);
  const PlanContext context = context_of(arguments, plan, p, source, program);
  if (arguments.format == PlanFormat::json) {
    const nlohmann::ordered_json json = plan_json(plan, p, costs, source, context);
    return arguments.actions ? schedule::render_json_with_actions(json, plan.schedule, p.pipeline)
                             : schedule::render_json(json);
  }
  return describe_processes(arguments, plan, p) +
         render_plan(plan, p, costs, source, text_options(arguments), context);
}

// Bytes a rank, minus a margin that stays free: predictions are a few per cent off, and libraries take memory
// too.
double budget_of(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  return room_of(arguments, base, source) * (1 - arguments.margin / 100);
}

// Writes the job of the row that --pick names, else of the best: the changes.
void write_pick(const PlanArguments& arguments, const PlanBase& base, const CostSource& source,
                const std::vector<Candidate>& rows, const std::optional<Candidate>& refined = std::nullopt) {
  if (arguments.write.empty()) return;
  const size_t row = std::max<size_t>(1, arguments.pick);
  if (row > rows.size()) throw UsageError(fmt::format("--pick {}: the search has {} rows", row, rows.size()));
  const Candidate& picked = refined && arguments.pick == 0 ? *refined : rows[row - 1];
  BestJob best{.config = arguments.config,
               .path = arguments.write,
               .command = command_line(),
               .costs = source.description,
               .budget = budget_of(arguments, base, source),
               .set = arguments.set};
  // What does nothing on the row's mesh goes, and dp, since the row says dp_shard.
  const config::JobConfig job = on_layout(base, picked.layout).job;
  std::erase_if(best.set, [&](const std::string& one) {
    const std::string key(trim(one.substr(0, one.find('='))));
    const config::Option* const option = config::find_option(key);
    return key == "distributed.dp" || (option && option->acts_when && !option->acts_when->test(job));
  });
  std::ranges::move(picked.layout.overrides(base.job, /*whole=*/true), std::back_inserter(best.set));
  const Plan plan = load_plan(arguments.config, best.set, {.world = arguments.world, .needs_files = false});
  io::write_output(arguments.write, write_best_job(best, picked, plan));
  fmt::print(stderr, "wrote {}\n", arguments.write);
}

// Reports what a search does, on standard error: after a second, after two, four and so on, during its
// lifetime.
class SearchProgress {
 public:
  SearchProgress() : teller_([this](const std::stop_token& stop) { tell(stop); }) {}

  void say(const std::string& what) {
    const std::lock_guard lock(mutex_);
    what_ = what;
  }

 private:
  void tell(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (std::chrono::seconds time(1);; time *= 2) {
      if (woken_.wait_until(lock, stop, begin_ + time, [] { return false; }) || stop.stop_requested()) return;
      if (!what_.empty()) fmt::print(stderr, "{} s: {}\n", time.count(), what_);
    }
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable_any woken_;
  std::string what_;
  std::jthread teller_;  // last: it uses the rest
};

template <class Search>
auto with_progress(SearchOptions& options, const Search& search) {
  SearchProgress progress;
  options.progress = [&](const std::string& what) { progress.say(what); };
  return search();
}

constexpr int order_effort = 30;  // a few seconds

std::string search_world(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  SearchOptions options{.world = static_cast<int>(arguments.world),
                        .budget = budget_of(arguments, base, source),
                        .order_effort = order_effort};
  if (arguments.all) options.rows = std::numeric_limits<size_t>::max();
  const MeshSearchResult found = with_progress(options, [&] { return search_meshes(base, source, options); });
  write_pick(arguments, base, source, found.ranking, found.refined);
  if (arguments.format == PlanFormat::json) return meshes_json(found, base, source, options);
  if (arguments.format == PlanFormat::csv) return meshes_csv(found, base);
  return render_meshes(found, base, source, options, text_options(arguments).width);
}

std::string search_plan(const PlanArguments& arguments, const PlanBase& base, const CostSource& source) {
  if (arguments.world > 0) return search_world(arguments, base, source);
  const double budget = budget_of(arguments, base, source);
  SearchOptions options{.microbatches = true, .budget = budget, .order_effort = order_effort};
  const std::vector<Candidate> found = with_progress(options, [&] { return search(base, source, options); });
  write_pick(arguments, base, source, found);
  if (arguments.format == PlanFormat::json) return ranking_json(found, base.job, budget);
  if (arguments.format == PlanFormat::csv) return ranking_csv(found, base.job);
  return fmt::format("costs: {}\n", source.description) + render_ranking(found, base.job, budget,
                                                                         text_options(arguments).width,
                                                                         arguments.all ? found.size() : 10);
}

void check_arguments(const PlanArguments& arguments) {
  if (arguments.actions && (arguments.format != PlanFormat::json || arguments.search))
    throw UsageError("--actions needs --format json, and no --search");
  if (arguments.search && (arguments.format == PlanFormat::svg || arguments.format == PlanFormat::trace))
    throw UsageError(fmt::format("--search prints text, json or csv, not {}", arguments.format.text));
  if (!arguments.search && !arguments.write.empty()) throw UsageError("--write needs --search");
  if (arguments.processes > 0 && (arguments.search || arguments.world > 0 || !arguments.compare.empty()))
    throw UsageError("--processes goes with neither --search, --world nor --compare");
}

// Predicts the run that wrote the trace with these costs, and compares it with the measurements.
std::string compare_trace(const std::string& trace_path, const CostSource& source) {
  const TraceSummary trace = read_trace(trace_path);
  const Plan plan = make_plan(trace.run.job);
  const Prediction p = predict(plan, source);
  std::string out = fmt::format("{} on {} ranks, {}; costs {}\n\n", plan.job.distributed.pp_schedule,
                                plan.compute.ranks, plan.compute.microbatches_text(), source.description);
  out += fmt::format("{:<24} {:>12} {:>12} {:>8}\n", "", "predicted", "measured", "ratio");
  const auto row = [&](const std::string& what, double predicted, double measured) {
    out += fmt::format("{:<24} {:>12.6g} {:>12.6g} {:>8}\n", what, predicted, measured,
                       measured > 0 ? fmt::format("{:.3f}", predicted / measured) : "");
  };
  row("step, s", p.step_time, trace.step_time);
  row("bubble, of the step", p.bubble(), value_or_zero(trace.bubble, "bubble"));
  for (int rank = 0; rank < plan.compute.ranks; ++rank) {
    std::map<std::string, double> predicted;
    for (const schedule::Action& action : plan.compute.actions[rank]) {
      schedule::for_each_part(action, [&](const schedule::Action& part) {
        predicted[schedule::trace_category(part.kind)] +=
            schedule::cost_of(p.costs, plan.compute, part).time.of(part.kind);
      });
    }
    predicted["optimizer"] = p.optimizer_time[rank];
    for (const auto& [kind, seconds] : predicted) {
      const auto& measured =
          trace.ranks.at(static_cast<size_t>(rank * (plan.mesh.world_size() / plan.mesh.pp)));
      row(fmt::format("rank {} {}, s", rank, kind), seconds, value_or_zero(measured, kind));
    }
  }
  return out;
}

// The costs that the arguments name, else the job, else what this machine takes if it is such as the job's.
// CPU ranks share the cores of their hosts, which are taken to be like this one.
CostSource cost_source(const PlanArguments& arguments, const PlanBase& base) {
  const std::string& named = arguments.costs.empty() ? base.job.distributed.pp_costs : arguments.costs;
  const bool measures = named.empty() ? base.job.run.device == config::Device::cpu : named == "measured";
  CostSource source =
      measures ? measure_machine(base) : make_cost_source(base, named == "modelled" ? "" : named);
  const int world = arguments.world > 0 ? static_cast<int>(arguments.world) : base.mesh.world_size();
  CoreSharing sharing{.cores = arguments.cores > 0 ? arguments.cores : static_cast<double>(core_count()),
                      .ranks_per_set = static_cast<int>(base.job.distributed.ranks_per_host)};
  if (arguments.processes > 0) {  // each has the cores of one rank
    sharing = {.cores = arguments.cores > 0 ? arguments.cores : static_cast<double>(base.job.run.threads),
               .ranks_per_set = (world + arguments.processes - 1) / arguments.processes};
  }
  return on_cores(std::move(source), world, base.job.run.threads, sharing);
}

NamedPlan named_plan(const PlanArguments& arguments, const std::string& config) {
  Plan plan = load_plan(config, arguments.set, {.world = arguments.world, .needs_files = false});
  CostSource source = cost_source(arguments, plan);
  Prediction prediction = predict(plan, source);
  return {std::filesystem::path(config).filename().string(), std::move(plan), std::move(prediction),
          std::move(source)};
}

// --compare: this job and another one, or a run's trace and its prediction.
std::string compare(const PlanArguments& arguments, const Plan& plan) {
  if (arguments.compare.ends_with(".toml"))
    return render_beside(named_plan(arguments, arguments.config), named_plan(arguments, arguments.compare));
  return compare_trace(arguments.compare, cost_source(arguments, plan));
}

void add_costs(CLI::App* plan, PlanArguments& arguments) {
  const auto names = device_names();
  const std::vector<std::string> devices(names.begin(), names.end());
  std::vector<std::string> sources = {"measured", "modelled"};
  sources.insert(sources.end(), devices.begin(), devices.end());
  CLI::Option* device = add_option(*plan, "--device NAME", arguments.costs,
                                   "Costs of a modelled device: cpu, a100, h100, h200, b200")
                            ->check(such_as(devices));
  CLI::Option* profile =
      add_option(*plan, "--profile TRACE", arguments.costs, "Costs measured by a run: its trace.json")
          ->excludes(device);
  add_option(*plan, "--costs WHICH", arguments.costs,
             "measured: runs passes on this machine for one or two seconds (default for a job on CPUs); "
             "modelled: models the job's device, runs nothing here; or as --device or --profile")
      ->check(such_as(sources))
      ->excludes(device)
      ->excludes(profile);
  add_option(*plan, "--cores N", arguments.cores,
             "Cores of each host, which its CPU ranks share; default: the cores that this process may use")
      ->check(CLI::PositiveNumber);
  add_option(*plan, "--processes N", arguments.processes,
             "Predicts a launch of N processes: with fewer than the ranks the pipeline is shortened, or "
             "processes have several ranks, which share a rank's cores (run.threads, or --cores)")
      ->check(CLI::Range(1, 1'000'000));
}

CLI::App* declare_plan(CLI::App& cli, PlanArguments& arguments) {
  CLI::App* plan =
      cli.add_subcommand("plan", "Predict a job's step: timeline, bubble, time and memory of each rank");
  add_job_options(*plan, arguments);
  CLI::Option* format = add_option(*plan, "--format FORMAT", arguments.format.text,
                                   "text, csv, json, svg, or trace (for Perfetto)")
                            ->check(CLI::IsMember(config::words_of<PlanFormat>()))
                            ->capture_default_str();
  plan->add_flag("--actions", arguments.actions, "With --format json: also every action, with its times");
  add_option(*plan, "-o,--output FILE", arguments.output, "Write to FILE instead of standard output");
  add_costs(plan, arguments);
  CLI::Option* search = plan->add_flag("--search", arguments.search,
                                       "Ranks combinations of schedule, stages per rank, microbatches and "
                                       "split; with --world N, whole meshes of N ranks");
  plan->add_flag("--all", arguments.all,
                 "With --search: shows every row, not only the first ten; otherwise every rank of a large "
                 "job");
  add_option(*plan, "--memory-gb GB", arguments.memory_gb,
             "Memory limit of a rank in GB (1e9 bytes); replaces distributed.pp_memory_gb and the GPU's "
             "memory")
      ->check(CLI::PositiveNumber);
  add_option(*plan, "--margin PERCENT", arguments.margin,
             "With --search: % of a rank's memory that stays free; predictions are a few % off")
      ->check(CLI::Range(0.0, 90.0))
      ->needs(search)
      ->capture_default_str();
  CLI::Option* write =
      add_option(*plan, "--write FILE", arguments.write,
                 "With --search: writes the best row's job to FILE, which includes the job and changes some "
                 "of its keys; with --world, the refined layout's job, if there is one");
  add_option(*plan, "--pick N", arguments.pick, "With --write: the job of row N, from 1")
      ->check(CLI::PositiveNumber)
      ->needs(write);
  add_option(*plan, "--price X", arguments.rates.price,
             "Price of one rank per hour: prints what the job costs")
      ->check(CLI::PositiveNumber)
      ->excludes(search);
  add_option(*plan, "--watts W", arguments.rates.watts,
             "Watts of one rank, including its fraction of the host: prints the job's energy")
      ->check(CLI::PositiveNumber)
      ->excludes(search);
  CLI::Option* after = add_option(
      *plan, "--after PASS", arguments.after,
      "Prints the ranks' actions (CSV) after this pass; the passes turn the schedule's list into what ranks "
      "run");
  after->check(CLI::IsMember(schedule::pass_names()))->excludes(search)->excludes(format);
  add_option(*plan, "--compare FILE", arguments.compare,
             "Compares the prediction with a run's trace.json, or with the prediction for another job "
             "(.toml)")
      ->excludes(search)
      ->excludes(format)
      ->excludes(after);
  return plan;
}

int plan(const PlanArguments& arguments) {
  check_arguments(arguments);
  const int64_t program = program_bytes();
  LoadOptions options{.world = arguments.world, .needs_files = false};
  if (arguments.processes > 0)
    options = {
        .world = arguments.processes, .of_processes = true, .fits_pipeline = true, .needs_files = false};
  std::string text;
  if (arguments.search) {
    const PlanBase base = load_plan_base(arguments.config, arguments.set, options);
    text = search_plan(arguments, base, cost_source(arguments, base));
  } else {
    const Plan plan = load_plan(arguments.config, arguments.set, options);
    check_processes(arguments, plan);
    const auto given = [&] { return plan.keeps_schedule() ? plan.compute : given_schedule(plan.job); };
    if (!arguments.after.empty()) {  // costs nothing, nor does the next
      text = schedule::write_csv(schedule::lower(given(), lower_options(plan), arguments.after));
    } else if (arguments.format == PlanFormat::csv) {
      text = schedule::write_stepped_csv(schedule::compute_only(given()));
    } else {
      text = arguments.compare.empty() ? render(arguments, plan, cost_source(arguments, plan), program)
                                       : compare(arguments, plan);
    }
  }
  if (arguments.output.empty()) {
    fmt::print("{}", text);
  } else {
    io::write_output(arguments.output, text);
  }
  return 0;
}

}  // namespace

void add_plan(CommandLine& line) {
  line.add(declare_plan, plan);
}

}  // namespace pptrain::app

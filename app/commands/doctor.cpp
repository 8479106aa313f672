// pptrain doctor
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/inspection.h"
#include "app/forecast/costs.h"
#include "app/forecast/plan_report.h"
#include "app/launch/core_check.h"
#include "app/launch/memory_check.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/resolve/load_plan.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "models/transformer_stage.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/mpi/mpi_communicator.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// The answers to each question, which rank 0 prints. Every method is collective.
class Examination {
 public:
  explicit Examination(RunContext& context)
      : context_(context),
        world_(context.mesh.world().host()),
        hosts_(comm::gather_strings(world_, host_name(), 0)) {}

  void memory();
  void cores();
  void disk();
  void device();
  void transport();
  void clocks();
  void links();
  bool healthy() const { return healthy_; }

 private:
  // One line: the question, and the problem, or else the figures.
  void say(std::string_view what, const std::string& problem, const std::string& figures);
  // Seconds of one message of `bytes` bytes from pipeline rank `from` to the next: half of a round trip of
  // only these two ranks.
  double one_way(int64_t bytes, int from, int trips);

  RunContext& context_;
  comm::Communicator& world_;
  std::vector<std::string> hosts_;  // of each rank, on rank 0
  bool healthy_ = true;
};

void Examination::say(std::string_view what, const std::string& problem, const std::string& figures) {
  if (!context_.root()) return;
  healthy_ = healthy_ && problem.empty();
  fmt::print("{:<9} {:<3} {}\n", what, problem.empty() ? "OK" : "no",
             printable(problem.empty() ? figures : problem));
}

void Examination::memory() {
  const std::vector<std::string> faults =
      comm::gather_strings(world_, find_shortage(context_.mesh.world(), context_.plan, context_.device), 0);
  const auto fault = std::ranges::find_if(faults, [](const std::string& text) { return !text.empty(); });
  say("memory",
      fault == faults.end()
          ? ""
          : fmt::format("host {}: {}", hosts_[static_cast<size_t>(fault - faults.begin())], *fault),
      context_.device.is_cpu() ? "all ranks fit into the memory that their hosts have available"
                               : "all ranks fit into the memory of their GPUs");
}

void Examination::cores() {
  const std::vector<RankCores> ranks = gather_cores(world_, context_.plan);
  const auto hosts = std::set<std::string>(hosts_.begin(), hosts_.end()).size();
  say("cores", describe_crowding(ranks),
      fmt::format("{} rank{} on {} host{}{}", hosts_.size(), hosts_.size() == 1 ? "" : "s", hosts,
                  hosts == 1 ? "" : "s", context_.device.is_cpu() ? ", a core for each thread" : ""));
}

// How many a run has at once, as far as steps decide: the newest is written before the oldest is removed.
// Those of checkpoint.minutes, whose times are not known here, count if a number of them is kept.
int64_t most_checkpoints(const config::JobConfig& job) {
  const config::CheckpointSection& c = job.checkpoint;
  const int64_t steps = job.train.steps, kept = c.keep_last_n + c.keep_best_n + 1;
  if (c.keep_last_n > 0 && c.minutes > 0) return std::min(kept, steps);
  const int64_t validates = c.keep_best_n > 0 ? job.eval.interval : 0;
  const auto times = [&](int64_t interval) { return interval > 0 ? steps / interval : 0; };
  const auto is_due_last = [&](int64_t interval) { return interval > 0 && steps % interval == 0; };
  int64_t all = times(c.interval) + times(validates);
  if (c.interval > 0 && validates > 0)  // both in every n-th validation
    all -= times(validates) / (c.interval / std::gcd(c.interval, validates));
  if (!is_due_last(c.interval) && !is_due_last(validates)) ++all;
  return c.keep_last_n > 0 ? std::min(all, kept) : all;
}

void Examination::disk() {
  if (!context_.root()) return;
  fs::path folder = fs::absolute(context_.job.run.dir);
  while (!fs::exists(folder) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  std::error_code error;
  const auto free = static_cast<double>(fs::space(folder, error).available);
  const auto one = static_cast<double>(checkpoint_bytes(context_.plan));
  const int64_t at_once = most_checkpoints(context_.job);
  const double all = one * static_cast<double>(at_once);
  const std::string figures =
      fmt::format("{:.1f} GB are free in {}; a checkpoint takes {:.2f} GB, {} at once {:.2f} GB", free / 1e9,
                  folder.string(), one / 1e9, at_once, all / 1e9);
  if (error) return say("disk", fmt::format("{}: {}", folder.string(), error.message()), "");
  say("disk", all > free ? figures : "", figures);
}

// run_ranks has chosen it, and would have refused a missing one.
void Examination::device() {
  say("device", "", context_.device.str());
}

void Examination::transport() {
  const comm::Launch launch = comm::detect_launch();
  const std::string mpi =
      comm::mpi_flavor() == comm::MpiFlavor::none ? "built without MPI" : comm::mpi_version();
  say("transport", "", fmt::format("{}; {}", comm::name(launch.kind), mpi));
}

void Examination::clocks() {
  constexpr double most = 1;  // s: below it, sorting lines of several hosts by time is good enough
  world_.barrier();
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto all = comm::gather(world_, std::span(&now, 1), 0);
  if (!context_.root()) return;
  const auto [low, high] = std::ranges::minmax_element(all);
  const double apart = high->front() - low->front();
  const std::string figures = fmt::format("{:.3f} s apart at most, the end of a barrier included", apart);
  say("clocks", apart > most ? figures : "", figures);
}

double Examination::one_way(int64_t bytes, int from, int trips) {
  comm::Communicator& pipeline = context_.mesh.along(mesh::Axis::pp);
  at::Tensor message = at::zeros({bytes}, at::TensorOptions(context_.device).dtype(at::kByte));
  const bool sends = pipeline.rank() == from;
  const int peer = sends ? from + 1 : from;
  const auto begin = Clock::now();
  for (int i = 0; i < trips; ++i) {
    if (sends) pipeline.isend(message, peer)->wait();
    pipeline.irecv(message, peer)->wait();
    if (!sends) pipeline.isend(message, peer)->wait();
  }
  static_cast<void>(message[0].item());  // waits for a GPU
  return seconds_since(begin) / trips / 2;
}

// Between neighbours of each pipeline, one pair after the other; the slowest counts.
void Examination::links() {
  const int pp = context_.plan.mesh.pp;
  if (pp == 1) return say("links", "", "one pipeline rank sends to nobody");
  const CostModel costs(context_.plan, make_cost_source(context_.plan, ""));
  const StageForecast first = costs.of(context_.plan.layers, 0);
  const int64_t activation = first.bytes.message;
  const int place = context_.mesh.along(mesh::Axis::pp).rank();
  double own[2] = {0, 0};  // s of a short message, and of an activation
  for (int from = 0; from + 1 < pp; ++from) {
    world_.barrier();
    if (place != from && place != from + 1) continue;
    one_way(activation, from, 1);  // opens the link
    own[0] = std::max(own[0], one_way(1, from, 20));
    own[1] = std::max(own[1], one_way(activation, from, 3));
  }
  const auto all = comm::gather(world_, own, 0);
  if (!context_.root()) return;
  const auto slowest = std::ranges::max_element(all, {}, [](const auto& times) { return times[1]; });
  const double forward = first.cost.time.forward;
  const std::string figures = fmt::format(
      "the slowest, at rank {}: {:.0f} us, {:.3g} Gb/s; an activation of {:.2f} MB takes {:.2f} ms, a "
      "forward pass {:.2f} ms",
      slowest - all.begin(), (*slowest)[0] * 1e6, static_cast<double>(activation) / (*slowest)[1] * 8e-9,
      static_cast<double>(activation) / 1e6, (*slowest)[1] * 1e3, forward * 1e3);
  say("links", (*slowest)[1] > forward ? figures : "", figures);
}

CLI::App* declare_doctor(CLI::App& cli, JobArguments& arguments) {
  CLI::App* doctor = cli.add_subcommand(
      "doctor",
      "Checks this launch's memory, cores, disk, clocks and links for a job; exit code 1: something is "
      "wrong");
  add_job_options(*doctor, arguments);
  return doctor;
}

int doctor(const JobArguments& arguments) {
  const auto load = [&] {
    log_to_stderr();
    return load_plan(arguments.config, arguments.set, options_of_rank(arguments, inspect_all));
  };
  return run_ranks(load, [](RunContext& context) {
    Examination examination(context);
    examination.memory();
    examination.cores();
    examination.disk();
    examination.device();
    examination.transport();
    examination.clocks();
    examination.links();
    if (context.root())
      fmt::print("{}\n", examination.healthy() ? "This job can run so." : "This job should not run so.");
    return examination.healthy() ? exit_done : exit_failed;
  });
}

}  // namespace

void add_doctor(CommandLine& line) {
  line.add(declare_doctor, doctor, /*of_ranks=*/true);
}

}  // namespace pptrain::app

// profile.trace: the times in trace.json and metrics.jsonl, and that a trace changes no number.
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "core/config/differences.h"
#include "parallel/schedule/cost/measured_step.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using nlohmann::json;

namespace {

json read_trace(const fs::path& run_dir) {
  std::ifstream file(run_dir / "trace.json");
  REQUIRE(file);
  return json::parse(file);
}

std::vector<json> events_of(const json& trace, int rank) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("tid") == rank) events.push_back(event);
  }
  std::ranges::sort(events, {}, [](const json& e) { return e.at("ts").get<double>(); });
  return events;
}

// Each step has every action of the schedule once, in the schedule's order, and no two of them overlap.
void check_rank(const json& trace, int rank, const std::vector<schedule::Action>& actions,
                const std::vector<int64_t>& steps) {
  std::vector<std::string> expected, found;
  for (const int64_t step : steps) {
    for (const auto& action : actions) expected.push_back(fmt::format("{} {}", step, to_string(action)));
  }
  double end = -1;
  std::set<std::string> phases;
  for (const json& event : events_of(trace, rank)) {
    const double start = event.at("ts");
    CHECK(start >= end - 1e-6);
    end = start + event.at("dur").get<double>();
    CHECK(event.at("dur").get<double>() >= 0);
    const std::string name = event.at("name");
    if (event.at("cat") == "phase") phases.insert(name);
    if (event.at("cat") == "phase" || event.at("cat") == "wait") continue;
    found.push_back(fmt::format("{} {}", event["args"]["step"].get<int64_t>(), name));
    CHECK(name.starts_with(std::to_string(event["args"]["stage"].get<int>())));
  }
  CHECK(found == expected);
  for (const char* phase : {"data", "loss", "gradient norm", "norm exchange", "optimizer", "evaluation"}) {
    CAPTURE(phase);
    CHECK(phases.contains(phase));
  }
}

// The time of a rank's kernels fits into its passes and phases, and is the time of one step.
void check_kernels(const json& trace, int rank, int layers, int microbatches) {
  double all = 0, kernels = 0;
  for (const json& event : events_of(trace, rank)) all += event.at("dur").get<double>() * 1e-6;
  double backward = 0;
  for (const json& kernel : trace.at("otherData").at("kernels").at(static_cast<size_t>(rank))) {
    const double seconds = kernel.at("seconds");
    CHECK(seconds > 0);
    kernels += seconds;
    if (kernel.at("kernel") == "swiglu_backward") backward += kernel.at("calls").get<double>();
    if (kernel.at("kernel") != "linear") continue;
    const auto [m, n, k] = kernel.at("product").get<std::array<double, 3>>();
    CHECK(kernel.at("flops") == 2 * m * n * k * kernel.at("calls").get<double>());
  }
  CHECK(backward == layers * microbatches);
  CHECK(kernels > 0);
  CHECK(kernels < all / static_cast<double>(trace.at("otherData").at("steps").size()));
}

// Every arrow has a begin and an end, on two different ranks.
void check_arrows(const json& trace, size_t expected) {
  std::map<std::string, int> begins, ends;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "s") CHECK(begins.emplace(event.at("id"), event.at("tid")).second);
    if (event.at("ph") == "f") CHECK(ends.emplace(event.at("id"), event.at("tid")).second);
  }
  CHECK(begins.size() == expected);
  CHECK(ends.size() == expected);
  for (const auto& [id, rank] : begins) CHECK(ends.at(id) != rank);
}

}  // namespace

TEST_CASE("a trace has every action of its steps once, and changes no number") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const int m = 4;
  for (const int pp : {2, 3}) {
    for (const int replicas : {1, 2}) {
      CAPTURE(pp, replicas);
      const fs::path dir = folder.path() / fmt::format("{}_{}", pp, replicas);
      const std::vector<std::string> layout = {"train.steps=5", fmt::format("distributed.pp={}", pp),
                                               fmt::format("distributed.dp_replicate={}", replicas),
                                               fmt::format("train.grad_accum_steps={}", m)};
      const JobResult plain = run_small_job(text, dir / "plain", layout);
      const JobResult traced =
          run_small_job(text, dir / "traced", with(layout, {"profile.trace=true", "profile.steps=2"}));
      CHECK(traced.metrics == plain.metrics);
      CHECK(traced.checksums == plain.checksums);
      CHECK_FALSE(fs::exists(dir / "plain" / "trace.json"));

      const json trace = read_trace(dir / "traced");
      const schedule::Schedule s =
          schedule::lower(schedule::make_schedule({.name = "1f1b", .ranks = pp, .microbatches = m}));
      for (int rank = 0; rank < pp * replicas; ++rank) {
        check_rank(trace, rank, schedule::timed_actions(s.actions[rank / replicas]), {2, 3});
        check_kernels(trace, rank, pp == 2 || rank / replicas == 0 ? 2 : 1, m);
      }
      check_arrows(trace, static_cast<size_t>(2 * replicas * 2 * m * (pp - 1)));
      const json& other = trace.at("otherData");
      CHECK(other.at("schedule") == "1f1b");
      CHECK(other.at("layers_per_stage") == (pp == 2 ? json{2, 2} : json{2, 1, 1}));
      CHECK(config::read_saved_job(other.at("job"), "the trace").model.hidden_size == 32);
      REQUIRE(other.at("steps").size() == 2);
      CHECK(other.at("steps")[0].at("step") == 2);
      CHECK(other.at("steps")[0].at("step_time_s") > 0);
    }
  }
}

TEST_CASE("metrics.jsonl says how the ranks idled in each step") {
  const TemporaryFolder folder;
  run_small_job(small_job_text(), folder.path(), {"distributed.pp=2", "train.grad_accum_steps=4"});
  std::ifstream lines(folder.path() / "metrics.jsonl");
  int steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    if (!record.contains("loss")) continue;
    ++steps;
    double sum = 0;
    for (const char* part : {"bubble_fill", "bubble_steady", "bubble_drain", "bubble_barrier"}) {
      CHECK(record.at(part) >= 0);
      sum += record.at(part).get<double>();
    }
    CHECK(record.at("bubble").get<double>() == Approx(sum));
    CHECK(sum > 0);
    CHECK(sum < 1);
    CHECK(record.at("bubble_wait") >= 0);
    CHECK(record.at("bubble_wait") <= sum);
  }
  CHECK(steps == 3);
}

TEST_CASE("a window that the run's end cuts short is written; a resumed run counts anew") {
  const TemporaryFolder folder;
  const std::string text = small_job_text();
  const std::vector<std::string> trace = {"profile.trace=true", "profile.first_step=3", "profile.steps=10",
                                          "checkpoint.resume=\"auto\""};
  run_small_job(text, folder.path(), with(trace, {"train.steps=4"}));
  CHECK(read_trace(folder.path()).at("otherData").at("steps").size() == 2);
  run_small_job(text, folder.path(), with(trace, {"train.steps=7"}));
  const json steps = read_trace(folder.path()).at("otherData").at("steps");
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].at("step") == 7);
}

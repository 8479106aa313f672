// What a run reports of its steps.
#include <nlohmann/json.hpp>

#include "core/optim/lr_schedule.h"
#include "models/flops.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

TEST_CASE("a run's MFU is above 0 and never above 100 %, also where the job's peak is too low") {
  for (const char* peak : {"1e-12", "0"}) {
    CAPTURE(peak);
    const TemporaryFolder folder;
    run_small_job(
        small_job_text(), folder.path(),
        {"distributed.pp=2", "train.grad_accum_steps=2", std::string("metrics.peak_tflops=") + peak});
    std::ifstream lines(folder.path() / "metrics.jsonl");
    double fastest = 0;
    int steps = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (!record.contains("mfu")) continue;
      const double mfu = record.at("mfu"), rate = record.at("tokens_per_s");
      CHECK((mfu > 0 && mfu <= 1));
      // A peak of 1 FLOP/s is too low, so each step that is faster than all before it becomes the peak.
      if (std::string(peak) != "0") CHECK((mfu == 1) == (rate > fastest));
      fastest = std::max(fastest, rate);
      ++steps;
    }
    CHECK(steps == 3);
  }
}

TEST_CASE("a run of several sources counts the passes over each") {
  const TemporaryFolder folder;
  std::string text = small_job_text();
  const size_t begin = text.find("path = "), end = text.find("[optimizer]");
  REQUIRE(begin < end);
  const std::string source = fmt::format("\npath = \"{}\"\n", shakespeare.string());
  text.replace(begin, end - begin,
               "[[data.sources]]\nname = \"first\"\nweight = 3" + source +
                   "[[data.sources]]\nname = \"second\"" + source);
  const size_t eval = text.find("[eval]");
  text.erase(eval, text.find("[checkpoint]") - eval);
  run_small_job(text, folder.path(), {"train.steps=4"});
  std::ifstream lines(folder.path() / "metrics.jsonl");
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("epochs")) last = record;
  }
  REQUIRE(last.contains("epochs"));
  const auto& epochs = last.at("epochs");
  REQUIRE(epochs.size() == 2);
  CHECK(epochs.at("first").get<double>() == Approx(3 * epochs.at("second").get<double>()));
  CHECK(epochs.at("second").get<double>() > 0);
}

TEST_CASE("a step's line has the schedule's rate, and figures that follow from its tokens and time") {
  const TemporaryFolder folder;
  const app::Plan plan = small_plan(small_job_text(), folder.path() / "run",
                                    {"distributed.pp=2", "train.grad_accum_steps=2", "train.steps=4"});
  run_plan(plan);
  const double flops = models::flops_per_token(plan.model, 16);
  std::ifstream lines(folder.path() / "run/metrics.jsonl");
  int64_t steps = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (!record.contains("mfu")) continue;
    ++steps;
    const auto of = [&](const char* key) { return record.at(key).get<double>(); };
    CHECK(of("lr") == Approx(optim::learning_rate(1e-2, plan.job.lr_schedule, 4, steps - 1)));
    CHECK(of("tokens") == 2 * 2 * 16);
    CHECK(of("tokens_per_s") == Approx(of("tokens") / of("step_time_s")));
    CHECK(of("mfu") == Approx(flops * of("tokens_per_s") / 2e12));  // metrics.peak_tflops = 1, for two ranks
    CHECK((of("memory_gb") > 0.01 && of("memory_gb") < 1000));
  }
  CHECK(steps == 4);
}

TEST_CASE("each step's loads of experts are its tokens times their choices, on any pipeline") {
  for (const char* pp : {"distributed.pp=1", "distributed.pp=2"}) {
    const TemporaryFolder folder;
    const JobResult result =
        run_small_job(small_job_text(), folder.path() / "run",
                      {pp, "train.grad_accum_steps=2", "model.arch=qwen3_moe", "model.num_experts=4",
                       "model.num_experts_per_tok=2", "model.moe_intermediate_size=16", "eval.interval=0"});
    int steps = 0;
    for (const std::string& line : result.metrics) {
      const auto record = nlohmann::json::parse(line);
      if (!record.contains("expert_load")) continue;
      ++steps;
      REQUIRE(record.at("expert_load").size() == 4);
      for (const auto& [layer, loads] : record.at("expert_load").items()) {
        int64_t sum = 0;
        for (const int64_t load : loads) sum += load;
        CHECK(sum == 2 * record.at("tokens").get<int64_t>());
      }
    }
    CHECK(steps == 3);
  }
}

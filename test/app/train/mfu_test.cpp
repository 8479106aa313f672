// What a run reports of its steps.
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

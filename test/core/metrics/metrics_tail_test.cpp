// The end of metrics.jsonl, read while it is written.
#include "core/metrics/metrics_file.h"

#include <cmath>
#include <fstream>

#include "core/metrics/step_record.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain::metrics;

namespace {

const auto some_time = *parse_utc("2026-01-31T23:59:59.250Z");

StepRecord step_record(int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .tokens = 100,
          .tokens_per_s = 50,
          .step_time_s = 2,
          .epoch = 0.25,
          .time = some_time + std::chrono::seconds(step)};
}

}  // namespace

TEST_CASE("points in time as text read back; other text does not") {
  CHECK(utc_text(some_time) == "2026-01-31T23:59:59.250Z");
  CHECK(*parse_utc("2026-01-31 23:59:59 UTC") == some_time - std::chrono::milliseconds(250));
  for (const char* text : {"", "yesterday", "2026-01-31", "2026-01-31T23:59:59.250Zx", "2026-01-31 23:59:59"})
    CHECK_FALSE(parse_utc(text));
}

TEST_CASE("the tail has the last steps and evaluation, and passes over what is no record") {
  std::string text = "{\"start\":\"new\",\"step\":0}\n";
  for (int64_t step = 1; step <= 5; ++step) text += to_json(step_record(step)) + "\n";
  text += to_json(EvalRecord{.step = 4, .loss = 1.5, .tokens = 7, .time_s = 0.5, .time = some_time}) + "\n";
  text += "{\"step\": 6, \"lo\n[1]\nnull\n{\"step\":\"7\",\"loss\":1}\n";
  text += "{\"step\":8,\"loss\":null,\"step_time_s\":1}\n";
  text += to_json(step_record(9)).substr(0, 40);  // half written
  const MetricsTail tail = parse_metrics_tail(text);
  REQUIRE(tail.steps.size() == 6);
  CHECK(tail.steps[4].step == 5);
  CHECK(tail.steps[4].loss == 0.2);
  CHECK(tail.steps[4].epoch == 0.25);
  CHECK(tail.steps[5].step == 8);
  CHECK(std::isnan(tail.steps[5].loss));
  REQUIRE(tail.evaluation);
  CHECK(tail.evaluation->step == 4);
  CHECK(tail.last == some_time + std::chrono::seconds(5));
}

TEST_CASE("a long file is read from its end, as far as it takes") {
  const ScratchFolder folder;
  const auto file = folder / "metrics.jsonl";
  CHECK(read_metrics_tail(file).steps.empty());
  std::ofstream out(file, std::ios::binary);
  out << to_json(EvalRecord{.step = 1, .loss = 1.5, .tokens = 7, .time_s = 0.5, .time = {}}) << "\n";
  for (int64_t step = 1; step <= 4000; ++step) out << to_json(step_record(step)) << "\n";
  out.close();
  REQUIRE(std::filesystem::file_size(file) > (1 << 20));
  const MetricsTail tail = read_metrics_tail(file, 3);
  REQUIRE(tail.steps.size() == 3);
  CHECK(tail.steps.front().step == 3998);
  CHECK(tail.steps.back().step == 4000);
  REQUIRE(tail.evaluation);  // at the very beginning
  CHECK(tail.evaluation->step == 1);
  CHECK_THROWS(read_metrics_tail(folder.path()));
}

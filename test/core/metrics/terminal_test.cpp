// The visible output of a run: the line at the bottom, the lines of the log, the log's file.
#include <spdlog/logger.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/metrics/log_sinks.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/terminal_sinks.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

metrics::Progress some_progress() {
  return {.latest = metrics::StepRecord{.step = 120,
                                        .loss = 1.63873,
                                        .grad_norm = 0.9123,
                                        .lr = 3e-4,
                                        .tokens = 4096,
                                        .tokens_per_s = 18102.4,
                                        .step_time_s = 0.226,
                                        .mfu = 0.263,
                                        .memory_gb = 0.45},
          .first_step = 0,
          .last_step = 800,
          .seconds_left = 312,
          .phase = ""};
}

// The fields in the order in which they appear when the terminal grows.
const std::vector<std::string> by_importance = {"step 120/800", "loss 1.6387", "5:12 left",
                                                "18,102 tok/s", "[",           "norm 0.912",
                                                "lr 3.00e-04",  "mfu 26.3%",   "mem 0.45 GB"};

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::vector<std::string> result;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

}  // namespace

TEST_CASE("the bar fits any width, and what is most important stays longest") {
  const metrics::Progress progress = some_progress();
  CHECK(metrics::progress_text(progress, 0).empty());
  CHECK(metrics::progress_text(progress, 6) == "step ");
  size_t before = 0;
  for (int columns = 1; columns <= 240; ++columns) {
    const std::string line = metrics::progress_text(progress, columns);
    CAPTURE(columns, line);
    CHECK(line.size() < static_cast<size_t>(columns));
    CHECK(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; }));
    size_t shown = 0;
    while (shown < by_importance.size() && line.find(by_importance[shown]) != std::string::npos) ++shown;
    for (size_t i = shown; i < by_importance.size(); ++i)
      CHECK(line.find(by_importance[i]) == std::string::npos);
    CHECK(shown >= before);
    before = shown;
  }
  CHECK(before == by_importance.size());
  CHECK(metrics::progress_text(progress, 200) ==
        "[###---------------------]  step 120/800  loss 1.6387  norm 0.912  lr 3.00e-04  18,102 tok/s  mfu "
        "26.3%"
        "  mem 0.45 GB  5:12 left");
}

TEST_CASE("the bar says what the run does instead of steps") {
  metrics::Progress progress = some_progress();
  progress.phase = "evaluating";
  CHECK(metrics::progress_text(progress, 30) == "step 120/800  evaluating");
  progress.phase = "";
  progress.latest->skipped = true;
  CHECK_THAT(metrics::progress_text(progress, 80), test::contains_text("SKIPPED"));
  progress.latest->loss = 1e30;
  progress.latest->skipped = false;
  CHECK_THAT(metrics::progress_text(progress, 80), test::contains_text("loss 1.00e+30"));
  const metrics::Progress fresh{
      .latest = std::nullopt, .first_step = 40, .last_step = 50, .seconds_left = {}, .phase = {}};
  CHECK(metrics::progress_text(fresh, 80) == "[------------------------]  step 40/50");
}

TEST_CASE("colors take no room") {
  const metrics::Progress progress = some_progress();
  for (int columns = 1; columns <= 200; ++columns) {
    const std::string colored = metrics::progress_text(progress, columns, true);
    CHECK(std::regex_replace(colored, std::regex("\x1b\\[[0-9;]*m"), "") ==
          metrics::progress_text(progress, columns));
  }
  CHECK_THAT(metrics::progress_text(progress, 100, true), test::contains_text("\x1b[36m["));
}

TEST_CASE("the time left is not told before it is known, nor where it is absurd") {
  metrics::TimeLeft left;
  left.step(1e6);  // the first step of a run may compile, read, warm up
  CHECK_FALSE(left.estimate(100));
  left.step(2);
  CHECK_FALSE(left.estimate(100));
  left.step(2);
  REQUIRE(left.estimate(100));
  CHECK(*left.estimate(100) == Approx(200));
  left.step(3600);  // suspended
  left.step(2);
  CHECK(*left.estimate(100) == Approx(200));
  left.pause(5);  // one second a step
  CHECK(*left.estimate(100) == Approx(300));
  CHECK(*left.estimate(0) == 0);
  metrics::TimeLeft broken;
  for (int i = 0; i < 9; ++i) broken.step(std::numeric_limits<double>::infinity());
  CHECK_FALSE(broken.estimate(3));
}

TEST_CASE("durations and numbers in words") {
  CHECK(metrics::duration_text(0) == "0:00");
  CHECK(metrics::duration_text(59.6) == "1:00");
  CHECK(metrics::duration_text(3599) == "59:59");
  CHECK(metrics::duration_text(11109) == "3:05:09");
  CHECK(metrics::duration_text(12 * 86400 + 4 * 3600 + 59) == "12d 04h");
  CHECK(metrics::with_commas(0) == "0");
  CHECK(metrics::with_commas(999) == "999");
  CHECK(metrics::with_commas(1234567) == "1,234,567");
  CHECK(metrics::with_commas(-123456) == "-123,456");
}

TEST_CASE("a line of the log comes every interval, with means since the last") {
  const test::CapturedLog log;
  const auto sink = metrics::make_line_sink(4, 10);
  for (int64_t step = 1; step <= 10; ++step) {
    sink->step(
        {.step = step, .loss = 2, .tokens = 100, .step_time_s = step == 3 ? 5.0 : 1.0, .skipped = step == 6});
  }
  sink->eval({.step = 10, .loss = 1.5, .tokens = 1000, .time_s = 0.5});
  const auto lines = log.lines();
  REQUIRE(lines.size() == 6);
  for (const auto& [line, start] : std::vector<std::pair<size_t, std::string>>{
           {0, "step 1/10 "}, {1, "step 4/10 "}, {2, "step 6/10 "}, {3, "step 8/10 "}, {4, "step 10/10 "}})
    CHECK(lines[line].starts_with(start));
  // Steps 2, 3 and 4: 300 tokens in 7 s.
  CHECK_THAT(lines[1], test::contains_text("tok/s 43 ") && test::contains_text("step_time 2.333 s"));
  CHECK_THAT(lines[2], test::contains_text("SKIPPED"));
  CHECK_THAT(lines[5], test::contains_text("validation loss 1.5000"));
}

TEST_CASE("a loss that is no number has no sign") {
  const double none = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
  const std::string line = metrics::format_line({.step = 1, .loss = none, .grad_norm = none}, 2);
  CHECK_THAT(line, test::contains_text("loss nan ") && test::contains_text("grad_norm nan "));
}

TEST_CASE("a line of the log fits its terminal, and off one says how long the rest takes") {
  const metrics::StepRecord record{.step = 120,
                                   .loss = 1.6387,
                                   .grad_norm = 0.5,
                                   .lr = 3e-3,
                                   .tokens_per_s = 26020,
                                   .step_time_s = 0.226,
                                   .mfu = 0.183,
                                   .memory_gb = 0.45};
  const std::string whole = metrics::format_line(record, 800);
  CHECK(whole ==
        "step 120/800  loss 1.6387  lr 3.000e-03  grad_norm 0.5000  tok/s 26,020  mfu 18.3%  mem 0.45 GB  "
        "step_time 0.226 s");
  CHECK(metrics::format_line(record, 800, 83.0) == whole + "  1:23 left");
  CHECK(metrics::format_line(record, 800, std::nullopt, 200) == whole);
  CHECK(metrics::format_line(record, 800, std::nullopt, 71) ==
        "step 120/800  loss 1.6387  lr 3.000e-03  grad_norm 0.5000  tok/s 26,020");
  CHECK(metrics::format_line(record, 800, std::nullopt, 10) == "step 120/800  loss 1.6387");
  for (int columns = 26; columns < 120; ++columns)
    CHECK(metrics::format_line(record, 800, std::nullopt, columns).size() <= static_cast<size_t>(columns));
}

TEST_CASE("skipped steps in a row take a line for the first, and one for all") {
  const test::CapturedLog log;
  const auto sink = metrics::make_line_sink(100, 100);
  for (int64_t step = 1; step <= 9; ++step)
    sink->step({.step = step,
                .loss = 2,
                .tokens = 100,
                .step_time_s = 1,
                .skipped = step == 2 || (step >= 4 && step <= 7)});
  sink->end();
  const auto lines = log.lines();
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[1], test::contains_text("step 2/100") && test::contains_text("SKIPPED"));
  CHECK_THAT(lines[2], test::contains_text("step 4/100") && test::contains_text("SKIPPED"));
  CHECK(lines[3] == "steps 4 to 7 were skipped, one after the other");
}

TEST_CASE("the log's file gets what came before it was opened, and keeps what earlier starts wrote") {
  const ScratchFolder folder;
  const std::regex dated(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ([IWE]) (.*))");
  for (const std::string start : {"first", "second"}) {
    const auto file = std::make_shared<metrics::LogFile>("log.txt");
    spdlog::logger logger("test", file);
    logger.info("{}: before", start);
    if (start == "first") CHECK_FALSE(std::filesystem::exists(folder.path() / "log.txt"));
    file->open(folder.path());
    logger.warn("{}: after", start);
    file->open(folder.path() / "elsewhere");  // nothing: it is open
    logger.error("{}: last", start);
  }
  std::vector<std::string> found;
  for (const std::string& line : lines_of(folder.path() / "log.txt")) {
    std::smatch parts;
    REQUIRE(std::regex_match(line, parts, dated));
    found.push_back(parts[1].str() + " " + parts[2].str());
  }
  CHECK(found == std::vector<std::string>{"I first: before", "W first: after", "E first: last",
                                          "I second: before", "W second: after", "E second: last"});
}

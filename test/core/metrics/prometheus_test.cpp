// The file for Prometheus. A real parser reads it in test/app/report/look_test.py.

#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/metrics/prometheus.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"

using namespace pptrain;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("samples and labels are written as the format asks") {
  const ScratchFolder folder;
  metrics::RunHeader header;
  header.device = "a\\b\"c\nd\xFFz";
  const auto sink = metrics::make_prometheus_sink(folder / "a.prom", "r\"1", 9, header, {});
  metrics::StepRecord record{
      .step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .lr = 0.1, .total_tokens = 3};
  record.grad_norm = -std::numeric_limits<double>::infinity();
  record.bubble = metrics::Bubble{.fill = 1, .steady = 2};
  sink->step(record);
  const std::string page = text_of(folder / "a.prom");
  for (const std::string part :
       {R"(device="a\\b\"c\nd)"
        "\xEF\xBF\xBDz\"",
        R"(
# HELP pptrain_tokens_total Tokens that have a target, of the run so far.
# TYPE pptrain_tokens_total counter
pptrain_tokens_total{run="r\"1"} 3
)",
        R"(
# TYPE pptrain_bubble_part_ratio gauge
pptrain_bubble_part_ratio{run="r\"1",part="fill"} 1
pptrain_bubble_part_ratio{run="r\"1",part="steady"} 2
)",
        R"(pptrain_loss_nats{run="r\"1"} NaN)", R"(pptrain_grad_norm{run="r\"1"} -Inf)",
        R"(pptrain_learning_rate{run="r\"1"} 0.1)"}) {
    CAPTURE(part);
    CHECK(page.find(part) != std::string::npos);
  }
}

TEST_CASE("the file follows the run, and stays as it was last") {
  const ScratchFolder folder;
  const fs::path file = folder.write("a.prom", "of an earlier run");
  metrics::RunHeader header;
  header.step = 4;
  header.layout = {{"pp", "2"}, {"data", "secret"}};
  const metrics::StepRecord so_far{.step = 4, .skipped_steps = 1, .total_tokens = 400, .saved_step = 4};
  auto sink = metrics::make_prometheus_sink(file, "runs/a", 9, header, so_far);
  const std::string before = text_of(file);
  CHECK(before.starts_with("# HELP pptrain_run_info What runs, in labels.\n# TYPE pptrain_run_info gauge\n"));
  CHECK(before.find("pptrain_tokens_total{run=\"runs/a\"} 400\n") != std::string::npos);
  CHECK(before.find("pptrain_skipped_steps_total{run=\"runs/a\"} 1\n") != std::string::npos);
  CHECK(before.find("pptrain_checkpoint_step{run=\"runs/a\"} 4\n") != std::string::npos);
  CHECK(before.find("secret") == std::string::npos);
  CHECK(before.find("pptrain_loss_nats") == std::string::npos);
  metrics::StepRecord record{.step = 5, .loss = 2.5, .memory_gb = 1.5, .total_tokens = 500};
  record.bubble = metrics::Bubble{.fill = 0.25};
  sink->step(record);
  sink->eval({.step = 5, .loss = 3});
  sink->end();
  sink.reset();
  const std::string after = text_of(file);
  CHECK(after.find("pptrain_step{run=\"runs/a\"} 5\n") != std::string::npos);
  CHECK(after.find("pptrain_loss_nats{run=\"runs/a\"} 2.5\n") != std::string::npos);
  CHECK(after.find("pptrain_memory_peak_bytes{run=\"runs/a\"} 1500000000\n") != std::string::npos);
  CHECK(after.find("pptrain_bubble_part_ratio{run=\"runs/a\",part=\"fill\"} 0.25\n") != std::string::npos);
  CHECK(after.find("pptrain_eval_loss_nats{run=\"runs/a\"} 3\n") != std::string::npos);
}

TEST_CASE("a reader never sees half of the file") {
  const ScratchFolder folder;
  const fs::path file = folder / "a.prom";
  metrics::RunHeader header;
  header.layout = {{"pp", std::string(1 << 16, 'x')}};
  const auto sink = metrics::make_prometheus_sink(file, "runs/a", 9, header, {});
  std::atomic<bool> ends = false;
  std::thread writer([&] {
    for (int64_t step = 1; !ends; ++step) sink->step({.step = step});
  });
  int64_t last = 0, seen = 0;
  while (seen < 20) {
    const std::string page = text_of(file);
    const size_t at = page.find("\npptrain_step{run=\"runs/a\"} ");
    if (at == std::string::npos || !page.ends_with('\n')) break;
    const int64_t step = std::stoll(page.substr(page.find(' ', at)));
    if (step < last) break;
    seen += step > last ? 1 : 0;
    last = step;
  }
  ends = true;
  writer.join();
  CHECK(seen == 20);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // no temporary file is left
}

TEST_CASE("a file that cannot be written refuses the start, and is one warning later") {
  const ScratchFolder folder;
  const auto make = [&](const fs::path& file) {
    return metrics::make_prometheus_sink(file, "runs/a", 9, {}, {});
  };
  CHECK_THROWS_AS(make(folder / "absent/a.prom"), Error);
  fs::create_directories(folder / "folder.prom");
  CHECK_THROWS_AS(make(folder / "folder.prom"), Error);
  fs::create_directories(folder / "inner");
  const auto sink = make(folder / "inner/a.prom");
  const test::CapturedLog log;
  fs::remove_all(folder / "inner");
  sink->step({.step = 1});
  sink->step({.step = 2});
  REQUIRE(log.lines().size() == 1);
  CHECK_THAT(log.text(), test::contains_text("inner/.tmp_a.prom") && test::contains_text("Training goes on"));
  fs::create_directories(folder / "inner");
  sink->step({.step = 3});
  CHECK(log.lines().size() == 2);
  CHECK_THAT(text_of(folder / "inner/a.prom"), test::contains_text("pptrain_step{run=\"runs/a\"} 3\n"));
}

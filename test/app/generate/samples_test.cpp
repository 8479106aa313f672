// Samples in training: their requirements, and that they change no number of training.
#include <sstream>

#include "core/base/error.h"
#include "test/app/small_job.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

const Overrides samples = {"eval.generate_interval=1", "eval.generate_tokens=9",
                           "eval.generate_prompt=\"To \""};

// The samples that the run logged.
std::vector<std::string> run_and_listen(const fs::path& run_dir, const Overrides& overrides,
                                        JobResult& result) {
  const app::Plan plan = small_plan(small_job_text(), run_dir, overrides);
  const CapturedLog log;
  result = run_plan(plan);
  std::vector<std::string> lines;
  std::istringstream all(log.text());
  for (std::string line; std::getline(all, line);) {
    if (line.find("  sample ") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST_CASE("samples change no number of training, and are the same on every pipeline", "[samples]") {
  const TemporaryFolder folder;
  const Overrides schedule = {"train.grad_accum_steps=4"};
  std::vector<std::string> reference;
  for (const Overrides& layout :
       {Overrides{}, Overrides{"distributed.pp=2"},
        Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv"},
        Overrides{"distributed.pp=2", "optimizer.post_validation=true"},
        Overrides{"distributed.dp_shard=2", "distributed.reshard_after_forward=true"},
        Overrides{"distributed.tp=2", "train.recompute=full"}, Overrides{"distributed.cp=2"}}) {
    CAPTURE(layout);
    JobResult without, sampled;
    CHECK(run_and_listen(folder.path() / "a", with(schedule, layout), without).empty());
    const auto lines = run_and_listen(folder.path() / "b", with(schedule, layout, samples), sampled);
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].starts_with("step 1  sample \"To \" -> \""));
    CHECK(sampled.exit_code == 0);
    CHECK(without.checksums.size() > 30);
    CHECK(sampled.checksums == without.checksums);
    CHECK(sampled.metrics == without.metrics);
    if (reference.empty()) reference = lines;
    if (layout.empty() || layout.front() == "distributed.pp=2") CHECK(lines == reference);
  }
}

TEST_CASE("samples that the job cannot have are refused", "[samples]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const Overrides& overrides) -> std::string {
    try {
      small_plan(small_job_text(), folder.path() / "run", with(samples, overrides));
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal({}).empty());
  CHECK_THAT(
      refusal({"eval.generate_tokens=15"}),
      contains_text("generate_tokens = 15 behind a prompt of 3 tokens is beyond the model's 16 positions"));
  CHECK_THAT(refusal({"eval.generate_prompt=\"\""}), contains_text("the prompt is empty"));
  CHECK_THAT(refusal({"data.format=bin"}), contains_text("data.format = \"bin\" does not say"));
  CHECK_THAT(refusal({"eval.generate_interval=0"}), contains_text("eval.generate_interval"));
}

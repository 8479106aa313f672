// Jobs whose steps change their number of microbatches: as a run that is stopped and goes on with another
// grad_accum_steps, on every layout.
#include <filesystem>
#include <string>
#include <vector>

#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain::test;

namespace {

// 2 microbatches in steps 1 and 2, 6 in steps 3 to 5, 3 in step 6.
const Overrides growing = {
    "train.grad_accum_steps=2",
    "train.grad_accum_schedule=[{from_step=3, grad_accum_steps=6}, {from_step=6, grad_accum_steps=3}]",
    "train.steps=6"};
const Overrides saving = {"checkpoint.interval=1", "checkpoint.keep_last_n=0"};
// The rate of a step does not depend on the number of steps.
const Overrides constant = {"lr_schedule.name=constant"};

JobResult run_in(const std::filesystem::path& folder, const Overrides& overrides) {
  return run_small_job(small_job_text(), folder, overrides);
}

}  // namespace

TEST_CASE("steps of several sizes have the bits of a run that is stopped between them") {
  const TemporaryFolder folder;
  const Overrides base = with(constant, {"train.dtype=bf16", "metrics.microbatch_losses=true"});
  const JobResult whole = run_in(folder.path() / "whole", with(base, growing));
  const auto part = [&](int steps, int microbatches) {
    return run_in(folder.path() / "parts",
                  with(base, {fmt::format("train.steps={}", steps), "eval.interval=0",
                              fmt::format("train.grad_accum_steps={}", microbatches),
                              "checkpoint.resume=auto", fmt::format("checkpoint.interval={}", steps)}));
  };
  part(2, 2);
  part(5, 6);
  const JobResult parts = part(6, 3);
  REQUIRE(whole.checksums.size() > 30);
  CHECK(whole.checksums == parts.checksums);
  const auto tokens_of = [&](size_t line) {
    return nlohmann::json::parse(whole.metrics.at(line)).at("tokens").get<int64_t>();
  };
  CHECK(tokens_of(0) == 2 * 2 * 16);
  CHECK(tokens_of(3) == 6 * 2 * 16);  // step 3, after an evaluation
}

TEST_CASE("steps of several sizes have equal bits on every pipeline, schedule and shard") {
  const TemporaryFolder folder;
  for (const std::string dtype : {"fp32", "bf16"}) {
    const Overrides base = with(
        growing, {"train.dtype=" + dtype, "metrics.microbatch_losses=true", "train.recompute=full:2/none:1"});
    const JobResult reference = run_in(folder.path() / "reference", base);
    for (const Overrides& layout :
         std::vector<Overrides>{{"distributed.pp=2"},
                                {"distributed.pp=2", "distributed.pp_schedule=zbv"},
                                {"distributed.pp=4", "distributed.pp_schedule=zb_h1"},
                                {"distributed.pp=2", "distributed.pp_schedule=zb_h2"}}) {
      CAPTURE(dtype, layout);
      check_equal(reference, run_in(folder.path() / "other", with(base, layout)));
    }
    run_in(folder.path() / "replicas", with(base, Overrides{"distributed.dp_replicate=2"}));
    run_in(folder.path() / "shards", with(base, {"distributed.dp_shard=2", "distributed.pp=2"}));
    check_equal_elements(folder.path() / "replicas", folder.path() / "shards");
  }
}

TEST_CASE("a run with steps of several sizes goes on in the middle of any, with the same evaluations") {
  const TemporaryFolder folder;
  const Overrides base = with(growing, saving);
  const JobResult whole = run_in(folder.path() / "whole", base);
  for (int step = 1; step < 6; ++step) {
    const auto run = folder.path() / std::to_string(step);
    std::filesystem::copy(folder.path() / "whole", run, std::filesystem::copy_options::recursive);
    for (int later = step + 1; later <= 6; ++later)
      std::filesystem::remove_all(run / fmt::format("checkpoints/step_{}", later));
    CAPTURE(step);
    check_equal(whole, run_in(run, with(base, {"checkpoint.resume=auto", "distributed.pp=2",
                                               "distributed.pp_schedule=zbv"})));
  }
}

TEST_CASE("what steps of several sizes cannot do is refused by name") {
  const TemporaryFolder folder;
  const auto refused = [&](const Overrides& overrides) {
    return [&folder, overrides] { small_plan(small_job_text(), folder.path(), with(growing, overrides)); };
  };
  const auto check_refused = [&](const Overrides& overrides, const std::string& text) {
    CAPTURE(overrides);
    CHECK_THROWS_WITH(refused(overrides)(), contains_text(text));
  };
  CHECK_NOTHROW(refused({"distributed.pp=2", "distributed.pp_schedule=zbv"})());
  const Overrides two = {"distributed.pp=2"};
  check_refused(with(two, {"distributed.pp_schedule=auto"}), "needs a schedule's name");
  check_refused(with(two, {"distributed.pp_schedule=search"}), "needs a schedule's name");
  check_refused(with(two, {"distributed.pp_head=spread"}), "distributed.pp_head");
  check_refused({"optimizer.post_validation=true"}, "optimizer.post_validation");
  check_refused({"profile.trace=true"}, "profile.trace");
  check_refused({"distributed.pp=4", "train.grad_accum_steps=4"},
                "train.grad_accum_schedule[1].grad_accum_steps");
  check_refused({"train.grad_accum_schedule=[{from_step=5, grad_accum_steps=6}, {from_step=5, "
                 "grad_accum_steps=3}]"},
                "train.grad_accum_schedule[1].from_step");
  check_refused({"train.grad_accum_schedule=[{from_step=1, grad_accum_steps=6}]"}, "from_step");
  check_refused({"train.grad_accum_schedule=[{from_step=2}]"}, "grad_accum_steps");
}

// What a job must fulfil beyond its file: schedules, stages, splits.
#include "app/plan/job.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "app/plan/pipeline_plan.h"
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::UsageError;
using pptrain::test::contains_text;
using pptrain::test::Overrides;

namespace {

const std::filesystem::path root = PPTRAIN_SOURCE_DIR;

pptrain::config::JobConfig job_with(const Overrides& overrides) {
  return pptrain::test::small_job(pptrain::test::small_job_text(), "run", overrides);
}

std::string refusal(const Overrides& overrides) {
  try {
    job_with(overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("schedules are found by any spelling, and their stages filled in") {
  const auto resolved = [](const std::string& name) {
    return job_with({"distributed.pp=2", "train.grad_accum_steps=4", "distributed.pp_schedule=" + name})
        .distributed;
  };
  CHECK(resolved("1F1B").pp_schedule == "1f1b");
  CHECK(resolved("1F1B").pp_stages_per_rank == 1);
  CHECK(resolved("ScheduleInterleaved1F1B").pp_schedule == "interleaved_1f1b");
  CHECK(resolved("Interleaved-1F1B").pp_stages_per_rank == 2);
  CHECK(resolved("ScheduleZBVZeroBubble").pp_schedule == "zbv");
  CHECK(resolved("DualPipeV").pp_schedule == "dualpipe_v");
}

TEST_CASE("what a schedule does not allow is laid at the key to change") {
  CHECK(refusal({"distributed.pp_schedule=1f2b"}) ==
        fmt::format("--set distributed.pp_schedule=1f2b: \"1f2b\" is not a schedule; did you mean \"1f1b\"? "
                    "Valid: {}, or a file ending in .csv",
                    fmt::join(pptrain::schedule::training_schedule_names(), ", ")));
  CHECK_THAT(refusal({"distributed.pp_schedule=seq1f1b"}), contains_text("seq1f1b is not there yet"));
  CHECK_THAT(refusal({"distributed.pp_schedule=inference"}), contains_text("it cannot train"));
  CHECK_THAT(refusal({"train.grad_accum_steps=3", "distributed.pp=4"}),
             contains_text("--set train.grad_accum_steps=3: 1f1b on 4 ranks needs at least 4 microbatches"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=zbv", "distributed.pp_stages_per_rank=3"}),
             contains_text("--set distributed.pp_stages_per_rank=3: zbv has exactly 2 stages per rank"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=dualpipe_v", "train.grad_accum_steps=3"}),
             contains_text("--set train.grad_accum_steps=3: dualpipe_v on 2 ranks needs at least 4"));
}

TEST_CASE("a split must fill the stages with the model's layers") {
  const std::vector<std::string> two = {"distributed.pp=2", "train.grad_accum_steps=2"};
  const auto with = [&](const std::string& split) {
    Overrides overrides = two;
    overrides.push_back("distributed.pp_split=" + split);
    return overrides;
  };
  const auto layers = [&](const std::string& split) {
    return pptrain::app::stage_layers(job_with(with(split)), 4);
  };
  CHECK(layers("[3, 1]") == pptrain::pipeline::LayerAssignment{{0, 3}, {3, 4}});
  CHECK(layers("*|1") == pptrain::pipeline::LayerAssignment{{0, 3}, {3, 4}});
  CHECK(layers("Et|tttL") == pptrain::pipeline::LayerAssignment{{0, 1}, {1, 4}});
  CHECK_THAT(refusal(with("[1, 1, 2]")), contains_text("3 numbers for 2 stages"));
  CHECK_THAT(refusal(with("[1, 2]")), contains_text("these are 3 layers, but the model has 4"));
  CHECK_THAT(refusal(with("odd")), contains_text("layout \"odd\": \"odd\" is not a stage"));
  CHECK_THAT(refusal({"distributed.pp=5", "train.grad_accum_steps=8"}),
             contains_text("--set distributed.pp=5: 4 layers cannot fill 5 stages"));
  CHECK_THAT(refusal({"distributed.pp=4", "train.grad_accum_steps=8", "distributed.pp_schedule=zbv"}),
             contains_text("4 layers cannot fill 8 stages"));
  std::vector<std::string> weighted = with("[3, 1]");
  weighted.push_back("distributed.pp_head_weight=1");
  CHECK_THAT(refusal(weighted), contains_text("acts on an even split alone"));
}

TEST_CASE("a schedule from a file must be the job's, and sound") {
  const std::string file = (root / "configs/schedules/1f1b_p2_m4_with_communication.csv").string();
  const std::vector<std::string> fitting = {"distributed.pp=2", "train.grad_accum_steps=4",
                                            "distributed.pp_schedule=" + file};
  CHECK(job_with(fitting).distributed.pp_stages_per_rank == 1);
  std::vector<std::string> other = fitting;
  other[1] = "train.grad_accum_steps=5";
  CHECK_THAT(refusal(other), contains_text("grad_accum_steps = 5, but the schedule in") &&
                                 contains_text("has 4 microbatches"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=/nowhere.csv"}),
             contains_text("/nowhere.csv"));
  const pptrain::test::TemporaryFolder folder;
  std::ofstream(folder.path() / "bad.csv") << "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n";
  CHECK_THAT(refusal({"distributed.pp=2", "train.grad_accum_steps=2",
                      "distributed.pp_schedule=" + (folder.path() / "bad.csv").string()}),
             contains_text(">1F1<"));
}

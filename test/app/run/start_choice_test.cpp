// The checkpoint that a start goes on from, as a table.
#include "app/run/start_choice.h"

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using pptrain::test::contains_text;

namespace {

config::JobConfig job_of(const std::string& resume) {
  config::JobConfig job;
  job.run.dir = "runs/x";
  job.train.steps = 100;
  job.checkpoint.resume = resume;
  return job;
}

// A folder in which `job` saved step 40, the newest sound checkpoint.
SavedProgress at_step_40(const config::JobConfig& job) {
  return {.checkpoints = 2,
          .newest = SavedRun{.folder = "runs/x/checkpoints/step_40",
                             .step = 40,
                             .next_sample = 320,
                             .seed = 0,
                             .job = job,
                             .data = {},
                             .base = {}},
          .problem = {}};
}

}  // namespace

TEST_CASE("what a start goes on from") {
  const SavedProgress unused{};
  const SavedProgress used = at_step_40(job_of("auto"));
  struct Case {
    const char* resume;
    SavedProgress progress;
    StartFrom from;
    const char* remark;  // part of it; empty: none
  };
  const std::vector<Case> cases = {
      {"auto", unused, StartFrom::nothing, ""},
      {"none", unused, StartFrom::nothing, ""},
      {"restart", unused, StartFrom::nothing, ""},
      {"old/step_7", unused, StartFrom::named, ""},
      {"auto", used, StartFrom::own_checkpoint, ""},
      {"none", used, StartFrom::own_checkpoint, "counts for the first start in a folder alone"},
      {"old/step_7", used, StartFrom::own_checkpoint, "\"old/step_7\" counts for the first start"},
      {"restart", used, StartFrom::nothing, ""},
  };
  for (const Case& c : cases) {
    CAPTURE(c.resume, c.progress.checkpoints);
    std::string remark;
    CHECK(choose_start(job_of(c.resume), c.progress, remark) == c.from);
    if (*c.remark == '\0') {
      CHECK(remark.empty());
    } else {
      CHECK_THAT(remark, contains_text(c.remark) && contains_text("\"restart\""));
    }
  }
}

TEST_CASE("a folder whose checkpoints are all damaged is not taken for a new one") {
  std::string remark;
  const SavedProgress damaged{
      .checkpoints = 3, .newest = {}, .problem = "none of the checkpoints can be used."};
  for (const char* resume : {"auto", "none", "old/step_7"}) {
    CHECK_THROWS_WITH(
        choose_start(job_of(resume), damaged, remark),
        contains_text("none of the checkpoints can be used. Nothing is begun anew over them, unless"));
  }
  CHECK(choose_start(job_of("restart"), damaged, remark) == StartFrom::nothing);
}

TEST_CASE("\"restart\" starts over once: the same job, requeued, goes on") {
  const config::JobConfig job = job_of("restart");
  std::string remark;
  const auto from = [&](const config::JobConfig& saved, int64_t step = 40) {
    SavedProgress progress = at_step_40(saved);
    progress.newest->step = step;
    return choose_start(job, progress, remark);
  };
  CHECK(from(job) == StartFrom::own_checkpoint);
  CHECK_THAT(remark, contains_text("step 40 of 100: it goes on"));
  // Also on another layout, as when a queue has fewer free machines.
  config::JobConfig other = job;
  other.distributed.dp_shard = 4;
  other.train.grad_accum_steps = 2;
  other.run.threads = 3;
  other.metrics.log_interval = 1;
  CHECK(from(other) == StartFrom::own_checkpoint);
  // At the last step the run is finished; a job with other settings is a new run.
  CHECK(from(job, 100) == StartFrom::nothing);
  other = job;
  other.optimizer.lr = 1;
  CHECK(from(other) == StartFrom::nothing);
  CHECK(from(job_of("none")) == StartFrom::nothing);
  SavedProgress without_job = at_step_40(job);
  without_job.newest->job.reset();
  CHECK(choose_start(job, without_job, remark) == StartFrom::nothing);
}

// A resumed run equals the uninterrupted one bit for bit, also on another layout.
#include "app/train/run_dir.h"
#include "core/base/error.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

const Overrides base = {"train.steps=6", "train.grad_accum_steps=4", "checkpoint.interval=2",
                        "train.dtype=bf16", "checkpoint.keep_last_n=0"};

// Leaves a run as it was when killed after step 4: its later checkpoints do not exist.
void forget_after_step_4(const std::filesystem::path& run_dir) {
  std::filesystem::remove_all(run_dir / "checkpoints/step_6");
  std::ofstream(run_dir / "checkpoints/latest") << "step_4\n";
}

}  // namespace

TEST_CASE("resuming equals not stopping, on any pp and schedule") {
  for (const std::string tied : {"false", "true"}) {
    const std::string text = small_job_text();
    const TemporaryFolder folder;
    const auto common = with(base, {"model.tie_word_embeddings=" + tied});
    const JobResult whole = run_small_job(text, folder.path() / "whole", with(common, {"distributed.pp=2"}));
    REQUIRE(whole.checksums.size() > 30);
    for (const std::vector<std::string>& layout :
         std::vector<std::vector<std::string>>{{"distributed.pp=1"},
                                               {"distributed.pp=2"},
                                               {"distributed.pp=3", "distributed.pp_schedule=gpipe"},
                                               {"distributed.pp=4"}}) {
      CAPTURE(tied, layout);
      const auto run_dir = folder.path() / "resumed";
      std::filesystem::remove_all(run_dir);
      std::filesystem::copy(folder.path() / "whole", run_dir, std::filesystem::copy_options::recursive);
      forget_after_step_4(run_dir);
      const JobResult resumed =
          run_small_job(text, run_dir, with(with(common, layout), {"checkpoint.resume=auto"}));
      CHECK(resumed.exit_code == 0);
      CHECK(resumed.metrics == whole.metrics);
      CHECK(resumed.checksums == whole.checksums);
    }
  }
}

TEST_CASE("a damaged checkpoint is passed over for the newest sound one") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  const JobResult whole = run_small_job(text, run_dir, base);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir / "checkpoints/step_6")) {
    if (entry.path().filename() != "model.safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x5a');
  }
  const JobResult resumed = run_small_job(text, run_dir, with(base, {"checkpoint.resume=auto"}));
  CHECK(resumed.metrics == whole.metrics);
  CHECK(resumed.checksums == whole.checksums);
  CHECK(std::filesystem::exists(run_dir / "checkpoints.1/step_6"));  // set aside, not deleted
}

TEST_CASE("a run whose checkpoints are all damaged is not begun anew") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  run_small_job(text, run_dir, base);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir / "checkpoints")) {
    if (entry.path().filename() != "model.safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x5a');
  }
  const auto resume = [&](const std::string& from) {
    run_small_job(text, run_dir, with(base, {"checkpoint.resume=\"" + from + "\"", "train.steps=8"}));
  };
  using pptrain::test::contains_text;
  CHECK_THROWS_WITH(resume("auto"), contains_text("none of the checkpoints in") &&
                                        contains_text("step_2: ") && contains_text("step_6: ") &&
                                        contains_text("' is damaged"));
  CHECK_THROWS_WITH(resume((run_dir / "checkpoints/step_4").string()), contains_text("' is damaged"));
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_6"));
}

TEST_CASE("another seed cannot continue a run") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "run", base);
  CHECK_THROWS_WITH(run_small_job(text, folder.path() / "run",
                                  with(base, {"checkpoint.resume=auto", "run.seed=7", "train.steps=8"})),
                    pptrain::test::contains_text("run.seed is 7"));
}

TEST_CASE("a new run sets earlier checkpoints aside") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  run_small_job(text, run_dir, base);
  run_small_job(text, run_dir, with(base, {"train.steps=2"}));
  CHECK(std::filesystem::exists(run_dir / "checkpoints.1/step_6"));
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_2"));
  CHECK_FALSE(std::filesystem::exists(run_dir / "checkpoints/step_4"));
}

TEST_CASE("step_007 is no checkpoint's folder, for nobody") {
  const TemporaryFolder folder;
  const auto root = folder.path() / "checkpoints";
  for (const char* name : {"step_2", "step_007", "step_10", "step_best"}) {
    std::filesystem::create_directories(root / name);
  }
  pptrain::app::set_aside_later_checkpoints(root, 2);
  CHECK(std::filesystem::exists(folder.path() / "checkpoints.1/step_10"));
  for (const char* name : {"step_2", "step_007", "step_best"}) CHECK(std::filesystem::exists(root / name));
  const auto chosen = [&](const std::string& name) {
    const Overrides resume = {"checkpoint.resume=\"" + (root / name).string() + "\""};
    pptrain::checkpoint::KnownProblems known;
    return pptrain::app::choose_checkpoint(
        pptrain::test::small_plan(small_job_text(), folder.path(), resume).job, known);
  };
  CHECK(chosen("step_2") == root / "step_2");
  CHECK_THROWS_WITH(chosen("step_007"), pptrain::test::contains_text("no complete checkpoint in"));
}

TEST_CASE("a smaller model does not resume from a larger one's checkpoint") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "run", base);
  CHECK_THROWS_WITH(
      run_small_job(text, folder.path() / "run",
                    with(base, {"checkpoint.resume=auto", "model.num_hidden_layers=3", "train.steps=8"})),
      pptrain::test::contains_text("another model's"));
}

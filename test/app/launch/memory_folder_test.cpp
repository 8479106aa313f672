// Copies in the host's memory belong to one run in one folder.
#include "app/launch/memory_folder.h"

#include <filesystem>

#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

TEST_CASE("copies in memory are found by their run alone, and leave nothing") {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  const fs::path memory = app::memory_folder(run);
  CHECK(memory.parent_path().parent_path() == "/dev/shm");
  CHECK(app::memory_folder(folder.path() / "." / "run") == memory);
  CHECK(app::memory_folder(folder.path() / "other") != memory);
  fs::create_directories(run);
  CHECK_FALSE(app::find_memory_copies(run));
  CHECK(app::begin_memory_copies(run) == memory);
  write_file(memory / "step_3/manifest.json", "{}");
  CHECK(app::find_memory_copies(run) == memory);
  CHECK(app::begin_memory_copies(run) == memory);
  CHECK(fs::exists(memory / "step_3"));

  SECTION("another run in the folder does not find them") {
    fs::remove_all(run);
    fs::create_directories(run);
    CHECK_FALSE(app::find_memory_copies(run));
    CHECK(app::begin_memory_copies(run) == memory);
    CHECK_FALSE(fs::exists(memory / "step_3"));
  }
  app::remove_memory_copies(run);
  CHECK_FALSE(fs::exists(memory));
  CHECK(fs::is_empty(run));
  CHECK_NOTHROW(app::remove_memory_copies(run));
}

// A run that went on from a copy: the checkpoint that it would have had is taken away.
TEST_CASE(
    "a start goes on from the newest copy, unless the disk has a newer checkpoint or the copy is damaged") {
  const TemporaryFolder folder;
  const std::string text = small_job_text();
  const Overrides job = {"checkpoint.interval=1", "checkpoint.keep_last_n=0", "lr_schedule.name=constant"};
  const fs::path run = folder.path() / "run", memory = app::memory_folder(run);
  const JobResult whole = run_small_job(text, folder.path() / "whole", with(job, {"train.steps=6"}));
  run_small_job(text, run, with(job, {"train.steps=4"}));
  const auto go_on = [&] {
    const fs::path copy = folder.path() / "copy";
    fs::remove_all(copy);
    fs::copy(run, copy, fs::copy_options::recursive);
    const JobResult result = run_small_job(text, run, with(job, {"train.steps=6", "checkpoint.resume=auto"}));
    const auto header = [&] {
      std::ifstream lines(run / "metrics.jsonl");
      nlohmann::json last;
      for (std::string line; std::getline(lines, line);) {
        const auto record = nlohmann::json::parse(line);
        if (record.contains("start")) last = record;
      }
      return last.at("checkpoint").get<std::string>();
    }();
    CHECK(result.checksums == whole.checksums);
    fs::remove_all(run);
    fs::rename(copy, run);
    return fs::path(header);
  };
  app::begin_memory_copies(run);
  fs::rename(run / "checkpoints/step_4", run / "moved");
  fs::copy(run / "moved", memory / "step_4", fs::copy_options::recursive);
  CHECK(go_on() == memory / "step_4");
  // As a newer one on disk, it is not needed.
  app::begin_memory_copies(run);
  fs::rename(run / "moved", run / "checkpoints/step_4");
  fs::copy(run / "checkpoints/step_3", memory / "step_3", fs::copy_options::recursive);
  CHECK(go_on() == run / "checkpoints/step_4");
  // Damaged copies are passed over.
  app::begin_memory_copies(run);
  fs::copy(run / "checkpoints/step_4", memory / "step_4", fs::copy_options::recursive);
  fs::remove_all(run / "checkpoints/step_4");
  fs::resize_file(memory / "step_4/stage_0/model.safetensors", 100);
  CHECK(go_on() == run / "checkpoints/step_3");
  app::remove_memory_copies(run);
}

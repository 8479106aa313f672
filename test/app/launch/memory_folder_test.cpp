// Copies in the host's memory belong to one run in one folder.
#include "app/launch/memory_folder.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

TEST_CASE("copies in memory are found by their run alone, and leave nothing") {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  const app::MemoryFolder memory(run);
  CHECK(memory.path().parent_path().parent_path() == "/dev/shm");
  CHECK(app::MemoryFolder(folder.path() / "." / "run").path() == memory.path());
  CHECK(app::MemoryFolder(folder.path() / "other").path() != memory.path());
  const fs::path relative = fs::relative(run);  // a folder that is not there yet
  CHECK(app::MemoryFolder(relative).path() == memory.path());
  CHECK(app::MemoryFolder(run / "").path() == memory.path());
  fs::create_directories(run);
  CHECK(app::MemoryFolder(run / "").path() == memory.path());
  CHECK(app::MemoryFolder(relative).path() == memory.path());
  CHECK_FALSE(memory.holds_copies());
  memory.begin(memory.make_run_id());
  write_file(memory.path() / "step_3/manifest.json", "{}");
  CHECK(memory.holds_copies());
  memory.begin(memory.make_run_id());
  CHECK(fs::exists(memory.path() / "step_3"));

  SECTION("somebody empties the host's memory") {
    fs::remove_all(memory.path());
    memory.keep_id(memory.run_id());
    CHECK(memory.holds_copies());
    write_file(memory.path() / "step_4/manifest.json", "{}");
    memory.keep_id(memory.run_id());
    CHECK(fs::exists(memory.path() / "step_4"));
  }

  SECTION("another run in the folder does not find them") {
    fs::remove_all(run);
    fs::create_directories(run);
    CHECK_FALSE(memory.holds_copies());
    memory.begin(memory.make_run_id());
    CHECK_FALSE(fs::exists(memory.path() / "step_3"));
  }
  memory.remove();
  CHECK_FALSE(fs::exists(memory.path()));
  CHECK(fs::is_empty(run));
  CHECK_NOTHROW(memory.remove());
}

// A run that went on from a copy: the checkpoint that it would have had is taken away.
TEST_CASE(
    "a start goes on from the newest copy, unless the disk has a newer checkpoint or the copy is damaged") {
  const TemporaryFolder folder;
  const std::string text = small_job_text();
  const Overrides job = {"checkpoint.interval=1", "checkpoint.keep_last_n=0", "lr_schedule.name=constant"};
  const fs::path run = folder.path() / "run";
  const app::MemoryFolder copies(run);
  const fs::path& memory = copies.path();
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
  copies.begin(copies.make_run_id());
  fs::rename(run / "checkpoints/step_4", run / "moved");
  fs::copy(run / "moved", memory / "step_4", fs::copy_options::recursive);
  CHECK(go_on() == memory / "step_4");
  // As a newer one on disk, it is not needed.
  copies.begin(copies.make_run_id());
  fs::rename(run / "moved", run / "checkpoints/step_4");
  fs::copy(run / "checkpoints/step_3", memory / "step_3", fs::copy_options::recursive);
  CHECK(go_on() == run / "checkpoints/step_4");
  // Damaged copies are passed over.
  copies.begin(copies.make_run_id());
  fs::copy(run / "checkpoints/step_4", memory / "step_4", fs::copy_options::recursive);
  fs::remove_all(run / "checkpoints/step_4");
  fs::resize_file(memory / "step_4/stage_0/model.safetensors", 100);
  CHECK(go_on() == run / "checkpoints/step_3");
  copies.remove();
}

// Files that a start sets aside, in made-up folders.
#include "app/run/run_dir.h"

#include <set>

#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain::app;
using namespace pptrain::test;

namespace {

void ignore(const std::string&) {}

// A folder with steps 2, 4 and 6, and with two folders that are not steps.
fs::path used_folder(const TemporaryFolder& folder) {
  const fs::path dir = folder.path() / "run";
  for (const char* name : {"step_2", "step_4", "step_6", "step_007", "step_best"}) {
    write_file(dir / "checkpoints" / name / "file", name);
  }
  write_file(dir / "checkpoints/latest", "step_6\n");
  write_file(dir / "metrics.jsonl",
             "{\"start\":\"new\",\"step\":0}\n{\"step\":2}\n{\"step\":4}\n{\"step\":6}\n");
  return dir;
}

}  // namespace

TEST_CASE("a run that goes on sets aside what lies ahead of it") {
  const TemporaryFolder folder;
  const fs::path dir = used_folder(folder);
  make_room(dir, 4, ignore);
  CHECK(names_in(dir / "checkpoints") ==
        std::set<std::string>{"step_2", "step_4", "step_007", "step_best", "latest"});
  CHECK(content(dir / "checkpoints/latest") == "step_4\n");
  CHECK(names_in(dir / "checkpoints.1") == std::set<std::string>{"step_6"});
  CHECK(content(dir / "metrics.jsonl") == "{\"start\":\"new\",\"step\":0}\n{\"step\":2}\n{\"step\":4}\n");
  CHECK(content(dir / "metrics.repeated.jsonl") == "{\"start\":\"new\",\"step\":0}\n{\"step\":6}\n");
  // Nothing lies ahead now.
  make_room(dir, 4, [](const std::string& text) { FAIL_CHECK(text); });
  CHECK(names_in(dir) ==
        std::set<std::string>{"checkpoints", "checkpoints.1", "metrics.jsonl", "metrics.repeated.jsonl"});
}

TEST_CASE("a run that starts over sets everything aside, each time under a new number") {
  const TemporaryFolder folder;
  for (const char* number : {"1", "2", "3"}) {
    const fs::path dir = used_folder(folder);
    const std::string metrics = content(dir / "metrics.jsonl");
    make_room(dir, std::nullopt, ignore);
    const fs::path aside = dir / (std::string("checkpoints.") + number);
    CHECK(names_in(aside) == std::set<std::string>{"step_2", "step_4", "step_6", "latest"});
    CHECK(names_in(dir / "checkpoints") == std::set<std::string>{"step_007", "step_best"});
    CHECK(content(dir / (std::string("metrics.") + number + ".jsonl")) == metrics);
    CHECK_FALSE(fs::exists(dir / "metrics.jsonl"));
  }
}

TEST_CASE("checkpoints on another disk stay there when they are set aside") {
  const TemporaryFolder folder;
  const fs::path dir = used_folder(folder), disk = folder.path() / "disk";
  fs::create_directories(disk);
  fs::rename(dir / "checkpoints", disk / "run");
  fs::create_directory_symlink(disk / "run", dir / "checkpoints");
  make_room(dir, 2, ignore);
  CHECK(names_in(disk / "run.1") == std::set<std::string>{"step_4", "step_6"});
  CHECK(fs::is_symlink(dir / "checkpoints"));
}

TEST_CASE("the name of the best checkpoint goes with it") {
  for (const bool best_stays : {true, false}) {
    CAPTURE(best_stays);
    const TemporaryFolder folder;
    const fs::path dir = used_folder(folder);
    write_file(dir / "checkpoints/best", best_stays ? "step_2\n" : "step_6\n");
    make_room(dir, 4, ignore);
    CHECK(fs::exists(dir / "checkpoints/best") == best_stays);
    CHECK(fs::exists(dir / "checkpoints.1/best") != best_stays);
  }
}

TEST_CASE("the job of each start is kept") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "job.toml";
  keep_job(file, "first");
  keep_job(file, "second");
  keep_job(file, "second");  // the same command again
  keep_job(file, "third");
  CHECK(content(file) == "third");
  CHECK(content(folder.path() / "job.1.toml") == "first");
  CHECK(content(folder.path() / "job.2.toml") == "second");
  CHECK(names_in(folder.path()) == std::set<std::string>{"job.toml", "job.1.toml", "job.2.toml"});
}

TEST_CASE("a trace makes room for the next one") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "trace.json";
  make_room_for_file(file, [](const std::string& text) { FAIL_CHECK(text); });
  write_file(file, "{}");
  make_room_for_file(file, ignore);
  CHECK(names_in(folder.path()) == std::set<std::string>{"trace.1.json"});
}

TEST_CASE("step_007 is no checkpoint's folder, for nobody") {
  const TemporaryFolder folder;
  const fs::path root = used_folder(folder) / "checkpoints";
  pptrain::checkpoint::KnownProblems known;
  CHECK(find_named_checkpoint((root / "step_2").string(), ignore, known) == root / "step_2");
  CHECK_THROWS_WITH(find_named_checkpoint((root / "step_007").string(), ignore, known),
                    contains_text("no complete checkpoint in"));
  CHECK_THROWS_AS(find_named_checkpoint((root / "step_8").string(), ignore, known), pptrain::UsageError);
  CHECK(find_progress(root, ignore, known).checkpoints == 3);
}

TEST_CASE("a job that starts take in turns is set aside once") {
  const TemporaryFolder folder;
  const auto file = folder.path() / "resolved.toml";
  for (const char* text : {"long", "short", "long", "short", "long", "other"}) {
    set_aside_once(file);
    keep_job(file, text);
  }
  CHECK(content(file) == "other");
  CHECK(content(folder.path() / "resolved.1.toml") == "long");
  CHECK(content(folder.path() / "resolved.2.toml") == "short");
  CHECK(names_in(folder.path()) ==
        std::set<std::string>{"resolved.toml", "resolved.1.toml", "resolved.2.toml"});
}

// Runs that keep their best checkpoints, and runs that diverge.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"
#include "parallel/checkpoint/manifest.h"
#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::contains_text;
using pptrain::test::content;
using pptrain::test::names_in;
using pptrain::test::Overrides;
using pptrain::test::small_job_text;
using pptrain::test::small_plan;
using pptrain::test::start_plan;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

int start(const std::string& text, const fs::path& run_dir, const Overrides& overrides) {
  return start_plan(small_plan(text, run_dir, overrides)).exit_code;
}

Json state_of(const fs::path& checkpoint) {
  return Json::parse(content(checkpoint / "manifest.json")).at("state");
}

std::map<int64_t, double> evaluations(const fs::path& run_dir) {
  std::map<int64_t, double> losses;
  std::ifstream in(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line);
    if (record.contains("eval_loss")) losses[record.at("step")] = record.at("eval_loss");
  }
  return losses;
}

// The checkpoints of a run after step `last` if every step was evaluated: each step keeps the newest one and
// the two best of those present.
std::set<std::string> expected_after(const std::map<int64_t, double>& losses, int64_t last,
                                     const std::set<int64_t>& ends) {
  std::map<int64_t, double> there;
  const auto rank = [&](int64_t step) {
    return std::ranges::count_if(there, [&](const auto& other) {
      return std::pair(other.second, other.first) < std::pair(there.at(step), step);
    });
  };
  for (int64_t step = 1; step <= last; ++step) {
    there[step] = losses.at(step);
    if (rank(step) >= 2 && !ends.contains(step)) {
      there.erase(step);  // neither among the best nor a run's last: it is not saved
      continue;
    }
    std::vector<int64_t> leaving;
    for (const auto& [other, loss] : there) {
      if (other != step && rank(other) >= 2) leaving.push_back(other);
    }
    for (const int64_t other : leaving) there.erase(other);
  }
  std::set<std::string> names = {"latest", "best"};
  for (const auto& [step, loss] : there) names.insert("step_" + std::to_string(step));
  return names;
}

std::string best_of(const std::map<int64_t, double>& losses, int64_t last) {
  const auto best =
      std::min_element(losses.begin(), losses.upper_bound(last), [](const auto& a, const auto& b) {
        return std::pair(a.second, a.first) < std::pair(b.second, b.first);
      });
  return "step_" + std::to_string(best->first) + "\n";
}

// Steps of letters that a model soon predicts, then of noise, then of letters again. A step reads 32 bytes.
std::string jumping_job(const fs::path& folder, int quiet_steps, int noisy_steps, int more_steps) {
  std::mt19937 random(1);
  std::string text;
  // The last label of a step is the first byte of the next one's.
  for (int i = 0; i <= 32 * (quiet_steps + noisy_steps + more_steps); ++i) {
    const bool noisy = i > 32 * quiet_steps && i <= 32 * (quiet_steps + noisy_steps);
    text += noisy ? static_cast<char>(random() % 256) : static_cast<char>('a' + random() % 4);
  }
  const fs::path file = folder / "text.txt";
  std::ofstream(file, std::ios::binary) << text;
  std::string job = small_job_text(file);
  job.replace(job.find("val_fraction = 0.2"), std::string("val_fraction = 0.2").size(), "shuffle = false");
  return job;
}

const Overrides jumping = {
    "train.micro_batch_size=1", "train.grad_accum_steps=2",  "train.steps=100",
    "eval.interval=0",          "eval.batches=10",           "lr_schedule.name=constant",
    "checkpoint.interval=2",    "checkpoint.keep_last_n=1",  "checkpoint.resume=auto",
    "train.divergence_steps=5", "train.divergence_window=8", "train.divergence_band=10"};

}  // namespace

TEST_CASE("the best checkpoints stay over stops and another layout, and the best is named") {
  const TemporaryFolder folder;
  const fs::path run_dir = folder.path() / "run";
  const Overrides base = {"train.grad_accum_steps=2", "lr_schedule.name=constant",
                          "optimizer.lr=0.05",        "eval.interval=1",
                          "eval.batches=1",           "checkpoint.keep_last_n=1",
                          "checkpoint.keep_best_n=2", "checkpoint.resume=auto",
                          "checkpoint.interval=0"};
  std::set<int64_t> ends;
  for (const int64_t steps : {5, 9, 16}) {
    CAPTURE(steps);
    ends.insert(steps);
    REQUIRE(start(small_job_text(), run_dir,
                  with(base, {"train.steps=" + std::to_string(steps),
                              steps == 9 ? "distributed.pp=2" : "distributed.pp=1"})) == 0);
    const auto losses = evaluations(run_dir);
    REQUIRE(static_cast<int64_t>(losses.size()) == steps);
    CHECK(names_in(run_dir / "checkpoints") == expected_after(losses, steps, ends));
    CHECK(content(run_dir / "checkpoints/best") == best_of(losses, steps));
    CHECK(state_of(run_dir / "checkpoints" / ("step_" + std::to_string(steps))).at("validation_loss") ==
          losses.at(steps));
  }
  // Killed while a later step was saved: only the folder's contents count.
  const auto before = names_in(run_dir / "checkpoints");
  fs::create_directories(run_dir / "checkpoints/.tmp_step_17");
  REQUIRE(start(small_job_text(), run_dir, with(base, {"train.steps=20"})) == 0);
  ends.insert(20);
  CHECK(names_in(run_dir / "checkpoints") == expected_after(evaluations(run_dir), 20, ends));
}

TEST_CASE("a loss that leaves its band ends the run, and the next start goes on from before that") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 64, 0);
  for (const std::string layout :
       {"distributed.pp=1", "distributed.pp=2", "optimizer.post_validation=true"}) {
    CAPTURE(layout);
    const fs::path run_dir = folder.path() / "run";
    fs::remove_all(run_dir);
    const Overrides overrides = with(jumping, {layout, "train.grad_clip=0"});
    REQUIRE(start(job, run_dir, overrides) == 1);
    const Json end = Json::parse(content(run_dir / "end.json"));
    CHECK(end.at("how") == "diverged");
    const int64_t step = end.at("step");
    CHECK(step == 65);
    const std::string diverged = "diverged_step_" + std::to_string(step);
    CHECK(end.at("checkpoint") == diverged);
    CHECK_THAT(
        end.at("message").get<std::string>(),
        contains_text("since step 61") && contains_text("step_60, from which the same command goes on"));
    CHECK(names_in(run_dir / "checkpoints") ==
          std::set<std::string>{"latest", "step_60", "diverged_step_62", "diverged_step_64", diverged});
    CHECK(content(run_dir / "checkpoints/latest") == "step_60\n");
    CHECK(state_of(run_dir / "checkpoints" / diverged).at("above_since") == 61);
    // The job is unchanged, so the run diverges again; it overwrites nothing of the first time.
    REQUIRE(start(job, run_dir, overrides) == 1);
    const auto again = names_in(run_dir / "checkpoints");
    CHECK(again.contains(diverged + ".1"));
    CHECK(again.contains("diverged_step_62.1"));
    CHECK(again.contains("step_60"));
    CHECK(Json::parse(content(run_dir / "end.json")).at("step") == step);
  }
}

TEST_CASE("a single loss above the band is seen in its step, also with post-validation") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 1, 40);
  for (const std::string post_validation : {"false", "true"}) {
    CAPTURE(post_validation);
    const fs::path run_dir = folder.path() / post_validation;
    REQUIRE(start(job, run_dir,
                  with(jumping, {"optimizer.post_validation=" + post_validation, "train.divergence_steps=1",
                                 "train.grad_clip=0", "checkpoint.interval=0"})) == 1);
    CHECK(Json::parse(content(run_dir / "end.json")).at("step") == 61);
  }
}

TEST_CASE("a run whose loss leaves its band goes back, and skips what led there") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 5, 60);
  const Overrides once = with(
      jumping, {"train.steps=90", "train.max_rollbacks=1", "train.grad_clip=0", "checkpoint.keep_last_n=0"});
  const fs::path at_once = folder.path() / "at_once";
  REQUIRE(start(job, at_once, once) == 0);
  const auto result = [](const fs::path& run_dir) {
    return pptrain::test::read_result(run_dir, 0).checksums;
  };
  const auto expected = result(at_once);
  CHECK(names_in(at_once / "checkpoints").contains("diverged_step_65"));
  const Json rollbacks = Json::parse(content(at_once / "rollbacks.json"));
  CHECK(rollbacks == Json::parse(R"([{"above_since": 61, "diverged": 65, "skip_to": 130}])"));
  CHECK(Json::parse(content(at_once / "end.json")).at("how") == "finished");

  SECTION("as if a run had begun at that state with these samples left out") {
    const fs::path sound = folder.path() / "sound/step_60";
    fs::create_directories(sound.parent_path());
    fs::copy(at_once / "checkpoints/step_60", sound, fs::copy_options::recursive);
    auto manifest = pptrain::checkpoint::read_manifest(sound);
    CHECK(manifest.state.next_sample == 120);
    manifest.state.next_sample = 130;
    std::ofstream(sound / "manifest.json") << to_text(manifest);
    const fs::path other = folder.path() / "other";
    REQUIRE(start(job, other, with(once, {"train.max_rollbacks=0", "checkpoint.resume=" + sound.string()})) ==
            0);
    CHECK(result(other) == expected);
  }
  SECTION("on other layouts") {
    for (const std::string layout :
         {"distributed.pp=2", "optimizer.post_validation=true", "checkpoint.memory_seconds=1e-9"}) {
      CAPTURE(layout);
      const fs::path other = folder.path() / "other";
      REQUIRE(start(job, other, with(once, {layout})) == 0);
      CHECK(result(other) == expected);
      CHECK(fs::exists(other / "rollbacks.json"));
      fs::remove_all(other);
    }
  }
  SECTION("a start after that reads the same samples") {
    for (int step = 62; step <= 90; step += 2)
      fs::remove_all(at_once / "checkpoints" / ("step_" + std::to_string(step)));
    REQUIRE(start(job, at_once, once) == 0);
    CHECK(result(at_once) == expected);
  }
  SECTION("a run that is asked to stop there stops, and the next start goes back") {
    const fs::path stopped = folder.path() / "stopped";
    REQUIRE(start(job, stopped, with(once, {"train.steps=64"})) == 0);
    const pptrain::fault::Shutdown shutdown;
    std::raise(SIGTERM);  // after a step: the one at which the run would go back
    const int code = pptrain::app::run_ranks(
        pptrain::test::small_plan(job, stopped, once),
        [&](pptrain::app::RunContext& context) { return pptrain::app::train_to_end(context, shutdown); });
    CHECK(code == 3);
    const Json end = Json::parse(content(stopped / "end.json"));
    CHECK(end.at("how") == "stopped");
    CHECK(end.at("checkpoint") == "step_60");
    REQUIRE(start(job, stopped, once) == 0);
    CHECK(result(stopped) == expected);
  }
  SECTION("a run that had ended may go back later") {
    const fs::path later = folder.path() / "later";
    REQUIRE(start(job, later, with(once, {"train.max_rollbacks=0"})) == 1);
    REQUIRE(start(job, later, once) == 0);
    CHECK(result(later) == expected);
  }
}

TEST_CASE("a run goes back so often and no more, and not without a state from before") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 64, 0);
  const fs::path run_dir = folder.path() / "run";
  CHECK(start(job, run_dir, with(jumping, {"train.max_rollbacks=2", "train.grad_clip=0"})) == 1);
  CHECK(Json::parse(content(run_dir / "rollbacks.json")).size() == 2);
  CHECK(Json::parse(content(run_dir / "end.json")).at("how") == "diverged");
  // A new run in the folder has not gone back yet.
  CHECK(start(job, run_dir, with(jumping, {"checkpoint.resume=restart", "train.steps=10"})) == 0);
  CHECK_FALSE(fs::exists(run_dir / "rollbacks.json"));

  // Also if all checkpoints are of another order of the data: those samples are skipped in the new one.
  const fs::path changed = folder.path() / "changed";
  REQUIRE(start(job, changed, with(jumping, {"train.steps=40", "train.grad_clip=0"})) == 0);
  CHECK(start(job, changed,
              with(jumping, {"train.max_rollbacks=2", "train.grad_clip=0", "checkpoint.interval=0",
                             "train.steps=70", "run.seed=7", "checkpoint.data=continue"})) == 0);
  CHECK(Json::parse(content(changed / "rollbacks.json")) ==
        Json::parse(R"([{"above_since": 61, "diverged": 65, "skip_to": 130}])"));

  const fs::path other = folder.path() / "other";
  CHECK(start(job, other,
              with(jumping, {"train.max_rollbacks=2", "train.grad_clip=0", "checkpoint.interval=0"})) == 1);
  CHECK_FALSE(fs::exists(other / "rollbacks.json"));
}

TEST_CASE("the watch for divergence goes on after a stop as if there had been none") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 64, 0);
  const Overrides whole = with(jumping, {"train.steps=62", "checkpoint.keep_last_n=0"});
  REQUIRE(start(job, folder.path() / "whole", whole) == 0);
  REQUIRE(start(job, folder.path() / "parts", with(whole, {"train.steps=31"})) == 0);
  REQUIRE(start(job, folder.path() / "parts", with(whole, {"train.steps=61", "distributed.pp=2"})) == 0);
  REQUIRE(start(job, folder.path() / "parts", whole) == 0);
  const Json state = state_of(folder.path() / "whole/checkpoints/step_62");
  CHECK(state.at("losses_above") == 2);
  CHECK(state.at("recent_losses").size() == 8);
  CHECK(state_of(folder.path() / "parts/checkpoints/step_62") == state);
}

TEST_CASE("a short rise of the loss ends nothing, and checkpoints go again when it is over") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 2, 40);
  REQUIRE(start(job, folder.path() / "run", with(jumping, {"train.steps=76"})) == 0);
  CHECK(names_in(folder.path() / "run/checkpoints") == std::set<std::string>{"latest", "step_76"});
}

TEST_CASE("a run goes back to a copy in memory, of which none is made while the loss is above its band") {
  const TemporaryFolder folder;
  const std::string job = jumping_job(folder.path(), 60, 5, 60);
  const fs::path run_dir = folder.path() / "run";
  CHECK(start(job, run_dir,
              with(jumping, {"train.steps=70", "train.max_rollbacks=1", "train.grad_clip=0",
                             "checkpoint.interval=0", "checkpoint.memory_seconds=1e-9"})) == 0);
  CHECK(Json::parse(content(run_dir / "rollbacks.json")) ==
        Json::parse(R"([{"above_since": 61, "diverged": 65, "skip_to": 130}])"));
}

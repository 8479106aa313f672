// A run with post-validation gives the same bits as with the barrier, even if steps are clipped or skipped.
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"
#include "parallel/checkpoint/checkpoint.h"
#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/covering.h"

using namespace pptrain;
using pptrain::test::Combination;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::small_job_text;
using pptrain::test::take_pairs;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

struct SplitLayout {
  std::string schedule;
  int pp;
};

const std::vector<std::string> schedules = {"gpipe", "1f1b",       "zb_h1",          "zb_h2",
                                            "zbv",   "dualpipe_v", "interleaved_zb", "search"};
constexpr size_t most_ranks = 4;

app::Plan plan_of(const SplitLayout& layout, bool post_validation, const std::filesystem::path& run_dir,
                  const Overrides& overrides) {
  Overrides all = overrides;
  all.push_back("distributed.pp_schedule=" + layout.schedule);
  all.push_back(fmt::format("distributed.pp={}", layout.pp));
  all.push_back(fmt::format("optimizer.post_validation={}", post_validation));
  return pptrain::test::small_plan(small_job_text(), run_dir, all);
}

JobResult run(const SplitLayout& layout, bool post_validation, const std::filesystem::path& run_dir,
              const Overrides& overrides) {
  return pptrain::test::run_plan(plan_of(layout, post_validation, run_dir, overrides));
}

const Overrides validated_job = {"model.num_hidden_layers=8", "train.grad_accum_steps=8", "train.steps=9",
                                 "eval.interval=6", "train.micro_batch_size=1"};

constexpr double out_of_reach = 1e6;  // above any grad norm here

std::vector<nlohmann::json> steps_of(const JobResult& result) {
  std::vector<nlohmann::json> steps;
  for (const std::string& line : result.metrics) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("grad_norm")) steps.push_back(record);
  }
  return steps;
}

// The median grad norm of `overrides`' steps: clipping by it is sometimes active.
double middle_norm(const TemporaryFolder& folder, const Overrides& overrides) {
  const JobResult free =
      run({"gpipe", 1}, false, folder.path() / "free", with(overrides, {"train.grad_clip=0"}));
  std::vector<double> norms;
  for (const auto& step : steps_of(free)) norms.push_back(step.at("grad_norm"));
  std::ranges::sort(norms);
  return norms[norms.size() / 2];
}

// Compares each job with post-validation with the same job with the barrier on one rank, for all pairs of
// job, schedule and number of ranks. If a job's limit is within reach, some of its steps must be over it.
void check_jobs(const std::vector<Overrides>& jobs) {
  const auto rows = take_pairs(std::array{jobs.size(), schedules.size(), most_ranks});
  for (size_t j = 0; j < jobs.size(); ++j) {
    const TemporaryFolder folder;
    const app::Plan plan = plan_of({"gpipe", 1}, false, folder.path() / "reference", jobs[j]);
    const JobResult reference = pptrain::test::run_plan(plan);
    const double limit = plan.job.train.grad_clip;
    if (limit > 0 && limit < out_of_reach) REQUIRE(pptrain::test::steps_over(reference, limit) > 0);
    for (const Combination& row : rows) {
      if (row[0] != j) continue;
      const SplitLayout layout{schedules[row[1]], static_cast<int>(row[2]) + 1};
      CAPTURE(layout.schedule, layout.pp, jobs[j]);
      check_equal(reference, run(layout, true, folder.path() / "run", jobs[j]));
    }
  }
}

// A checkpoint of step 0 in which the embedding of the byte k is NaN: a step is not finite if its data have a
// k.
std::filesystem::path poisoned_checkpoint(const std::filesystem::path& root, const Overrides& overrides) {
  const app::Plan plan = plan_of({"gpipe", 1}, false, root / "unused", overrides);
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context);
    model.initialise();
    auto contents = model.contents();
    for (auto& tensor : contents[0].files.at("model")) {
      if (tensor.name == "embed.weight") tensor.tensor.select(0, 'k').fill_(NAN);
    }
    checkpoint::save(context.mesh.world(), {.root = root}, {}, contents);
    return 0;
  });
  return root / "step_0";
}

}  // namespace

TEST_CASE("post-validation gives the bits of the barrier, whatever is clipped or not finite") {
  const TemporaryFolder folder;
  const Overrides bf16 = {"train.dtype=bf16", "model.tie_word_embeddings=true"};
  const std::string sometimes = "train.grad_clip=" + std::to_string(middle_norm(folder, validated_job));
  const std::string start =
      "checkpoint.resume=" + poisoned_checkpoint(folder.path() / "poisoned", validated_job).string();
  const Overrides poisoned =
      with(validated_job, {start, "train.grad_clip=0", "train.max_skipped_steps=100", "train.steps=12"});
  const JobResult once = run({"gpipe", 1}, false, folder.path() / "once", poisoned);
  int skipped = 0;
  for (const auto& step : steps_of(once)) skipped += step.at("skipped").get<bool>();
  REQUIRE((skipped > 2 && skipped < 10));
  const std::string never = fmt::format("train.grad_clip={}", out_of_reach);
  check_jobs({with(validated_job, {"train.grad_clip=0"}), with(validated_job, bf16, Overrides{never}),
              with(validated_job, {sometimes}), with(validated_job, bf16, Overrides{sometimes}),
              with(validated_job, {"train.grad_clip=1e-3"}), poisoned});
}

TEST_CASE("too many skipped steps end a run as they do with the barrier") {
  const TemporaryFolder folder;
  const std::string start =
      "checkpoint.resume=" + poisoned_checkpoint(folder.path() / "poisoned", validated_job).string();
  const Overrides overrides = with(validated_job, {start, "train.max_skipped_steps=1"});
  for (const bool post_validation : {false, true}) {
    CHECK_THROWS_WITH(run({"zb_h2", 2}, post_validation, folder.path() / "run", overrides),
                      pptrain::test::contains_text("max_skipped_steps = 1"));
  }
}

TEST_CASE("where a step is not finite, weights are looked at as they were before it") {
  const TemporaryFolder folder;
  // The first step leaves weights that are finite and too large for the second.
  const Overrides overrides =
      with(validated_job, {"optimizer.lr=1e18", "train.grad_clip=0", "train.max_skipped_steps=0"});
  for (const bool post_validation : {false, true}) {
    CAPTURE(post_validation);
    CHECK_THROWS_WITH(run({"zb_h2", 2}, post_validation, folder.path() / "run", overrides),
                      pptrain::test::contains_text("max_skipped_steps = 0") &&
                          pptrain::test::contains_text("not finite") &&
                          !pptrain::test::contains_text("the weight "));
  }
}

TEST_CASE("post-validation gives the bits of the barrier on replicas") {
  const TemporaryFolder folder;
  const Overrides replicas = with(validated_job, {"distributed.dp_replicate=2", "train.grad_accum_steps=4"});
  const std::string clip = "train.grad_clip=" + std::to_string(middle_norm(folder, replicas));
  for (const Overrides& overrides : {with(replicas, {"train.grad_clip=0"}), with(replicas, {clip})}) {
    const JobResult reference = run({"gpipe", 1}, false, folder.path() / "reference", overrides);
    for (const SplitLayout& layout :
         {SplitLayout{"1f1b", 2}, SplitLayout{"zb_h2", 2}, SplitLayout{"zbv", 2}, SplitLayout{"zb_h2", 3}}) {
      CAPTURE(layout.schedule, layout.pp);
      check_equal(reference, run(layout, true, folder.path() / "run", overrides));
    }
  }
}

TEST_CASE("a run with post-validation resumes from any checkpoint, and any run from its") {
  const TemporaryFolder folder;
  const std::string clip = "train.grad_clip=" + std::to_string(middle_norm(folder, validated_job));
  const Overrides overrides =
      with(validated_job, {clip, "checkpoint.interval=4", "checkpoint.keep_last_n=0"});
  const JobResult reference = run({"gpipe", 1}, false, folder.path() / "reference", overrides);
  for (const auto& [first, second] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, true)}) {
    const auto run_dir = folder.path() / ("run" + std::to_string(2 * first + second));
    run({"zb_h2", 2}, first, run_dir, overrides);
    std::filesystem::remove_all(run_dir / "checkpoints/step_9");
    std::filesystem::remove_all(run_dir / "checkpoints/step_8");
    std::ofstream(run_dir / "checkpoints/latest") << "step_4\n";
    check_equal(reference, run({"zbv", 2}, second, run_dir, with(overrides, {"checkpoint.resume=auto"})));
  }
}

TEST_CASE("a signal stops a run with post-validation soon, and it resumes bit for bit") {
  const TemporaryFolder folder;
  const Overrides overrides = with(validated_job, {"train.grad_clip=0", "eval.interval=0"});
  const JobResult reference = run({"gpipe", 1}, false, folder.path() / "reference", overrides);
  const auto run_dir = folder.path() / "run";
  const app::Plan plan = plan_of({"zb_h2", 2}, true, run_dir, overrides);
  const fault::Shutdown shutdown;
  std::raise(SIGTERM);
  const int code =
      app::run_ranks(plan, [&](app::RunContext& context) { return app::train_to_end(context, shutdown); });
  CHECK(code == 3);
  const size_t done = pptrain::test::read_result(run_dir, code).metrics.size();
  CHECK((done > 0 && done <= 3));
  check_equal(reference, run({"zb_h2", 2}, true, run_dir, with(overrides, {"checkpoint.resume=auto"})));
}

TEST_CASE("a validation that is not finite is no score, and its checkpoint can be resumed") {
  const TemporaryFolder folder;
  const std::string start =
      "checkpoint.resume=" + poisoned_checkpoint(folder.path() / "poisoned", validated_job).string();
  const auto run_dir = folder.path() / "run";
  const Overrides overrides = with(validated_job, {start, "train.grad_clip=0", "train.max_skipped_steps=100",
                                                   "train.steps=12", "eval.interval=12", "eval.batches=10"});
  CHECK(run({"gpipe", 1}, false, run_dir, overrides).exit_code == 0);
  const auto manifest =
      nlohmann::json::parse(pptrain::test::content(run_dir / "checkpoints/step_12/manifest.json"));
  CHECK_FALSE(manifest.at("state").contains("validation_loss"));
  CHECK(run({"gpipe", 1}, false, run_dir, with(overrides, {"checkpoint.resume=auto", "train.steps=13"}))
            .exit_code == 0);
}

// The same jobs under mpirun and in one process: equal bit for bit.
#include "parallel/schedule/generators/generators.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/mpirun.h"

using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;

namespace {

struct Layout {
  std::string schedule;
  int pp;
  int microbatches;
  std::string dtype;
  std::string name() const { return fmt::format("{}_pp{}_m{}_{}", schedule, pp, microbatches, dtype); }
  std::vector<std::string> common() const {
    return {fmt::format("train.grad_accum_steps={}", microbatches), "train.dtype=" + dtype};
  }
  Overrides overrides() const {
    std::vector<std::string> result = common();
    result.push_back(fmt::format("distributed.pp={}", pp));
    result.push_back("distributed.pp_schedule=" + schedule);
    return result;
  }
};

std::vector<Layout> grid(int pp) {
  std::vector<Layout> layouts;
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      for (int m = schedule == "1f1b" ? pp : 1; m <= 8; ++m) layouts.push_back({schedule, pp, m, dtype});
    }
  }
  // Of the other schedules a sample: those whose stages the four layers fill.
  for (const std::string& schedule : pptrain::schedule::training_schedule_names()) {
    if (schedule == "gpipe" || schedule == "1f1b") continue;
    const auto made = pptrain::schedule::make_schedule({.name = schedule, .ranks = pp, .microbatches = 8});
    if (made.stages() <= 4) layouts.push_back({schedule, pp, 8, "bf16"});
  }
  return layouts;
}

}  // namespace

// dp_shard 2 x dp_replicate 2 under mpirun against four replicas in one process; kept, streamed, and summed
// after each microbatch.
TEST_CASE("under mpirun sharded ranks equal replicas in one process bit for bit") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides common = {"train.grad_accum_steps=3"};
  const auto replicas = [&](const std::string& reduce) {
    return run_small_job(text, folder.path() / ("reference" + reduce),
                         pptrain::test::with(common, {"distributed.dp_replicate=4",
                                                      "distributed.reduce_gradients=" + reduce}));
  };
  const std::map<std::string, JobResult> references = {{"step", replicas("step")},
                                                       {"microbatch", replicas("microbatch")}};
  nlohmann::json jobs = nlohmann::json::array();
  std::vector<std::pair<std::string, std::string>> runs;  // folder, when gradients are summed
  for (const std::string reduce : {"step", "microbatch"}) {
    for (const std::string reshard : {"false", "true"}) {
      for (const std::string shards : {"2", "4"}) {
        runs.emplace_back((folder.path() / (reduce + reshard + shards)).string(), reduce);
        jobs.push_back(
            {{"text", text},
             {"run_dir", runs.back().first},
             {"overrides", pptrain::test::with(
                               common, {"distributed.dp_shard=" + shards,
                                        "distributed.dp_replicate=" + std::to_string(4 / std::stoi(shards)),
                                        "distributed.reshard_after_forward=" + reshard,
                                        "distributed.reduce_gradients=" + reduce})}});
      }
    }
  }
  const std::filesystem::path list = folder.path() / "jobs.json";
  std::ofstream(list) << jobs;
  const pptrain::test::Ended ended = pptrain::test::mpirun(4, {JOB_LIST_RANK, list.string()}, 300);
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  for (const auto& [run_dir, reduce] : runs) {
    CAPTURE(run_dir);
    const JobResult& reference = references.at(reduce);
    REQUIRE(reference.metrics.size() >= 4);
    CHECK(pptrain::test::read_result(run_dir, 0).metrics == reference.metrics);
    CHECK(pptrain::test::checkpoint_elements(run_dir) ==
          pptrain::test::checkpoint_elements(folder.path() / ("reference" + reduce)));
  }
}

TEST_CASE("under mpirun every layout equals one process bit for bit") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  std::map<std::string, JobResult> references;
  for (const Layout& layout : grid(1)) {
    if (layout.schedule != "gpipe") continue;
    references[layout.dtype + std::to_string(layout.microbatches)] =
        run_small_job(text, folder.path() / "reference" / layout.name(), layout.common());
  }
  for (const int pp : {1, 2, 3, 4}) {
    nlohmann::json jobs = nlohmann::json::array();
    for (const Layout& layout : grid(pp)) {
      jobs.push_back({{"text", text},
                      {"run_dir", (folder.path() / layout.name()).string()},
                      {"overrides", layout.overrides()}});
    }
    const std::filesystem::path list = folder.path() / "jobs.json";
    std::ofstream(list) << jobs;
    const pptrain::test::Ended ended = pptrain::test::mpirun(pp, {JOB_LIST_RANK, list.string()}, 300);
    INFO(ended.output);
    REQUIRE(ended.code == 0);
    for (const Layout& layout : grid(pp)) {
      const JobResult& reference = references.at(layout.dtype + std::to_string(layout.microbatches));
      const JobResult result = pptrain::test::read_result(folder.path() / layout.name(), 0);
      CAPTURE(layout.name());
      REQUIRE(reference.metrics.size() >= 4);
      REQUIRE(reference.checksums.size() > 30);
      CHECK(result.metrics == reference.metrics);
      CHECK(result.checksums == reference.checksums);
    }
  }
}

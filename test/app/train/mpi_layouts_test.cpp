// The same jobs under mpirun and in one process: equal bit for bit.
#include <array>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/covering.h"
#include "test/support/mpirun.h"

using pptrain::test::Combination;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::take_pairs;
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

constexpr int most_ranks = 4;

// All pairs of schedule, ranks, microbatches and dtype; the model's four layers must fill the stages.
std::vector<Layout> layouts() {
  const std::vector<std::string> schedules = pptrain::schedule::training_schedule_names();
  const std::array dtypes{"fp32", "bf16"};
  const std::vector<int> microbatches =
      pptrain::test::all_wanted() ? std::vector{1, 2, 3, 4, 5, 6, 7, 8} : std::vector{1, 2, 3, 5, 8};
  const auto layout_of = [&](const Combination& row) {
    return Layout{schedules[row[0]], static_cast<int>(row[1]) + 1, microbatches[row[2]], dtypes[row[3]]};
  };
  const auto exists = [&](const Combination& row) {
    const Layout layout = layout_of(row);
    try {
      return pptrain::schedule::make_schedule(
                 {.name = layout.schedule, .ranks = layout.pp, .microbatches = layout.microbatches})
                 .stages() <= 4;
    } catch (const pptrain::UsageError&) {
      return false;
    }
  };
  std::vector<Layout> result;
  for (const Combination& row : take_pairs(
           std::array<size_t, 4>{schedules.size(), most_ranks, microbatches.size(), dtypes.size()}, exists)) {
    result.push_back(layout_of(row));
  }
  return result;
}

}  // namespace

// dp_shard 2 x dp_replicate 2 under mpirun against four replicas in one process; kept, streamed, and summed
// after each microbatch.
TEST_CASE("under mpirun sharded ranks equal replicas in one process bit for bit") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides common = {"train.grad_accum_steps=3"};
  const std::array reduces{"step", "microbatch"};
  const std::array reshards{"false", "true"};
  const std::array shards{2, 4};
  std::map<std::string, JobResult> references;
  for (const std::string reduce : reduces) {
    references[reduce] =
        run_small_job(text, folder.path() / ("reference" + reduce),
                      pptrain::test::with(
                          common, {"distributed.dp_replicate=4", "distributed.reduce_gradients=" + reduce}));
  }
  nlohmann::json jobs = nlohmann::json::array();
  std::vector<std::pair<std::string, std::string>> runs;  // folder, when gradients are summed
  for (const Combination& row : take_pairs(std::array{reduces.size(), reshards.size(), shards.size()})) {
    const std::string reduce = reduces[row[0]], reshard = reshards[row[1]];
    const int count = shards[row[2]];
    runs.emplace_back((folder.path() / fmt::format("{}_{}_{}", reduce, reshard, count)).string(), reduce);
    jobs.push_back(
        {{"text", text},
         {"run_dir", runs.back().first},
         {"overrides", pptrain::test::with(common, {fmt::format("distributed.dp_shard={}", count),
                                                    fmt::format("distributed.dp_replicate={}", 4 / count),
                                                    "distributed.reshard_after_forward=" + reshard,
                                                    "distributed.reduce_gradients=" + reduce})}});
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
  const std::vector<Layout> all = layouts();
  CHECK(all.size() >= 40);
  std::map<std::vector<std::string>, JobResult> references;
  for (const Layout& layout : all) {
    const auto [reference, first] = references.try_emplace(layout.common());
    if (first)
      reference->second = run_small_job(text, folder.path() / "reference" / layout.name(), layout.common());
  }
  for (int pp = 1; pp <= most_ranks; ++pp) {
    nlohmann::json jobs = nlohmann::json::array();
    for (const Layout& layout : all) {
      if (layout.pp != pp) continue;
      jobs.push_back({{"text", text},
                      {"run_dir", (folder.path() / layout.name()).string()},
                      {"overrides", layout.overrides()}});
    }
    const std::filesystem::path list = folder.path() / "jobs.json";
    std::ofstream(list) << jobs;
    const pptrain::test::Ended ended = pptrain::test::mpirun(pp, {JOB_LIST_RANK, list.string()}, 300);
    INFO(ended.output);
    REQUIRE(ended.code == 0);
  }
  for (const Layout& layout : all) {
    const JobResult& reference = references.at(layout.common());
    const JobResult result = pptrain::test::read_result(folder.path() / layout.name(), 0);
    CAPTURE(layout.name());
    REQUIRE(reference.metrics.size() >= 4);
    REQUIRE(reference.checksums.size() > 30);
    CHECK(result.metrics == reference.metrics);
    CHECK(result.checksums == reference.checksums);
  }
}

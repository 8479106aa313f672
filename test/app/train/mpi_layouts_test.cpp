// The same jobs under mpirun and in one process: equal bit for bit.
#include <array>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/covering.h"
#include "test/support/mpirun.h"
#include "test/support/paths.h"

namespace fs = std::filesystem;
using pptrain::test::Combination;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::take_pairs;
using pptrain::test::TemporaryFolder;

namespace {

struct MpiLayout {
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

constexpr int most_mpi_ranks = 4;

// All pairs of schedule, ranks, microbatches and dtype; the model's four layers must fill the stages.
std::vector<MpiLayout> layouts() {
  const std::vector<std::string> schedules = pptrain::schedule::training_schedule_names();
  const std::array dtypes{"fp32", "bf16"};
  const std::vector<int> microbatches =
      pptrain::test::all_wanted() ? std::vector{1, 2, 3, 4, 5, 6, 7, 8} : std::vector{1, 2, 3, 5, 8};
  const auto layout_of = [&](const Combination& row) {
    return MpiLayout{schedules[row[0]], static_cast<int>(row[1]) + 1, microbatches[row[2]], dtypes[row[3]]};
  };
  const auto exists = [&](const Combination& row) {
    const MpiLayout layout = layout_of(row);
    try {
      return pptrain::schedule::make_schedule(
                 {.name = layout.schedule, .ranks = layout.pp, .microbatches = layout.microbatches})
                 .stages() <= 4;
    } catch (const pptrain::UsageError&) {
      return false;
    }
  };
  std::vector<MpiLayout> result;
  for (const Combination& row :
       take_pairs(std::array<size_t, 4>{schedules.size(), most_mpi_ranks, microbatches.size(), dtypes.size()},
                  exists)) {
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
  std::vector<std::pair<std::string, std::string>> runs;  // folder, reduce_gradients
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
  const pptrain::test::Ended ended =
      pptrain::test::mpirun(4, {(pptrain::test::build_dir() / "job_list_rank").string(), list.string()}, 300);
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

// zbv has the same stages, and no pairs.
TEST_CASE("halves of a pair that take turns give the bits of one after the other") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides experts = {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                             "model.moe_intermediate_size=16"};
  const std::vector<Overrides> axes = {
      pptrain::test::with(experts, {"distributed.dp_shard=2", "distributed.ep=2",
                                    "distributed.reshard_after_forward=true", "train.recompute=full"}),
      pptrain::test::with(experts, {"distributed.tp=2", "distributed.ep=2"}),
      {"distributed.cp=2", "distributed.cp_kind=ring"},
      {"distributed.cp=2", "distributed.cp_kind=ulysses", "distributed.reduce_gradients=microbatch"}};
  std::map<int, nlohmann::json> jobs;                // [ranks]
  std::vector<std::pair<fs::path, JobResult>> runs;  // folder, expected result
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    for (const int pp : {1, 2}) {
      const auto job = [&](const std::string& schedule) {
        return pptrain::test::with(
            axes[axis], {"train.grad_accum_steps=6", "train.dtype=bf16", "distributed.ranks_per_host=1",
                         fmt::format("distributed.pp={}", pp), "distributed.pp_schedule=" + schedule});
      };
      const std::string name = fmt::format("{}_{}", axis, pp);
      const JobResult reference = run_small_job(text, folder.path() / ("reference_" + name), job("zbv"));
      const JobResult threads = run_small_job(text, folder.path() / ("threads_" + name), job("dualpipe_v"));
      CAPTURE(name);
      REQUIRE(reference.metrics.size() >= 4);
      CHECK(threads.metrics == reference.metrics);
      CHECK(threads.checksums == reference.checksums);
      runs.emplace_back(folder.path() / name, reference);
      jobs[2 * pp].push_back(
          {{"text", text}, {"run_dir", runs.back().first.string()}, {"overrides", job("dualpipe_v")}});
    }
  }
  for (const auto& [ranks, of_ranks] : jobs) {
    const std::filesystem::path list = folder.path() / "jobs.json";
    std::ofstream(list) << of_ranks;
    const pptrain::test::Ended ended = pptrain::test::mpirun(
        ranks, {(pptrain::test::build_dir() / "job_list_rank").string(), list.string()}, 300);
    INFO(ended.output);
    REQUIRE(ended.code == 0);
  }
  for (const auto& [run_dir, reference] : runs) {
    const JobResult result = pptrain::test::read_result(run_dir, 0);
    CAPTURE(run_dir);
    CHECK(result.metrics == reference.metrics);
    CHECK(result.checksums == reference.checksums);
  }
}

TEST_CASE("under mpirun a spread head gives the bits of threads") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  nlohmann::json jobs = nlohmann::json::array();
  std::vector<JobResult> threads;
  for (const std::string schedule : {"1f1b", "zbv", "dualpipe_v"}) {
    const Overrides job = {"train.grad_accum_steps=6", "distributed.pp=2", "distributed.pp_head=spread",
                           "train.dtype=bf16", "distributed.pp_schedule=" + schedule};
    threads.push_back(run_small_job(text, folder.path() / ("threads_" + schedule), job));
    REQUIRE(threads.back().metrics.size() >= 4);
    jobs.push_back({{"text", text}, {"run_dir", (folder.path() / schedule).string()}, {"overrides", job}});
  }
  const std::filesystem::path list = folder.path() / "jobs.json";
  std::ofstream(list) << jobs;
  const pptrain::test::Ended ended =
      pptrain::test::mpirun(2, {(pptrain::test::build_dir() / "job_list_rank").string(), list.string()}, 300);
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  for (size_t i = 0; i < threads.size(); ++i) {
    const JobResult result = pptrain::test::read_result(jobs[i].at("run_dir").get<std::string>(), 0);
    CHECK(result.metrics == threads[i].metrics);
    CHECK(result.checksums == threads[i].checksums);
  }
}

TEST_CASE("under mpirun every layout equals one process bit for bit") {
  if (!pptrain::test::has_mpi()) return;
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const std::vector<MpiLayout> all = layouts();
  CHECK(all.size() >= 40);
  std::map<std::vector<std::string>, JobResult> references;
  for (const MpiLayout& layout : all) {
    const auto [reference, first] = references.try_emplace(layout.common());
    if (first)
      reference->second = run_small_job(text, folder.path() / "reference" / layout.name(), layout.common());
  }
  for (int pp = 1; pp <= most_mpi_ranks; ++pp) {
    nlohmann::json jobs = nlohmann::json::array();
    for (const MpiLayout& layout : all) {
      if (layout.pp != pp) continue;
      jobs.push_back({{"text", text},
                      {"run_dir", (folder.path() / layout.name()).string()},
                      {"overrides", layout.overrides()}});
    }
    const std::filesystem::path list = folder.path() / "jobs.json";
    std::ofstream(list) << jobs;
    const pptrain::test::Ended ended = pptrain::test::mpirun(
        pp, {(pptrain::test::build_dir() / "job_list_rank").string(), list.string()}, 300);
    INFO(ended.output);
    REQUIRE(ended.code == 0);
  }
  for (const MpiLayout& layout : all) {
    const JobResult& reference = references.at(layout.common());
    const JobResult result = pptrain::test::read_result(folder.path() / layout.name(), 0);
    CAPTURE(layout.name());
    REQUIRE(reference.metrics.size() >= 4);
    REQUIRE(reference.checksums.size() > 30);
    CHECK(result.metrics == reference.metrics);
    CHECK(result.checksums == reference.checksums);
  }
}

// Meshes under mpirun and over TCP: the bits of thread ranks.
#include <nlohmann/json.hpp>

#include "test/app/train/mesh_grid.h"
#include "test/support/catch.h"
#include "test/support/mpirun.h"
#include "test/support/paths.h"

using namespace pptrain;
using test::GridJob;
using test::JobResult;

namespace {

namespace fs = std::filesystem;

constexpr int ranks = 4;

struct Job {
  GridJob grid;
  bool experts;
  std::string name() const { return (experts ? "experts_" : "dense_") + grid.name(); }
  test::Overrides overrides() const { return test::with(grid.common(), grid.layout()); }
};

// Every n-th of a grid's jobs on four ranks, so that all axes occur.
std::vector<Job> sample(size_t count) {
  std::vector<Job> found;
  for (const bool experts : {false, true}) {
    std::vector<GridJob> fitting;
    for (const GridJob& job : test::grid_jobs(experts, ranks)) {
      if (job.mesh.world_size() == ranks) fitting.push_back(job);
    }
    REQUIRE(fitting.size() >= count);
    for (size_t i = 0; i < count / 2; ++i)
      found.push_back({fitting[i * fitting.size() / (count / 2)], experts});
  }
  return found;
}

fs::path write_list(const fs::path& folder, const std::vector<Job>& jobs) {
  nlohmann::json list = nlohmann::json::array();
  for (const Job& job : jobs) {
    list.push_back({{"text", test::grid_job_text(job.experts)},
                    {"run_dir", (folder / job.name()).string()},
                    {"overrides", job.overrides()}});
  }
  fs::create_directories(folder);
  std::ofstream(folder / "jobs.json") << list;
  return folder / "jobs.json";
}

void check_against_threads(const fs::path& folder, const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    CAPTURE(job.name());
    const JobResult threads = test::run_small_job(test::grid_job_text(job.experts),
                                                  folder / "threads" / job.name(), job.overrides());
    const JobResult launched = test::read_result(folder / job.name(), 0);
    REQUIRE(threads.metrics.size() >= 3);
    CHECK(launched.metrics == threads.metrics);
    CHECK(launched.checksums == threads.checksums);
  }
}

}  // namespace

TEST_CASE("meshes under mpirun give the bits of threads") {
  if (!test::has_mpi()) return;
  const test::TemporaryFolder folder;
  const std::vector<Job> jobs = sample(8);
  const fs::path list = write_list(folder.path(), jobs);
  const test::Ended ended =
      test::mpirun(ranks, {(test::build_dir() / "job_list_rank").string(), list.string()}, 300);
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  check_against_threads(folder.path(), jobs);
}

TEST_CASE("meshes over TCP give the bits of threads") {
  const test::TemporaryFolder folder;
  const std::vector<Job> jobs = sample(4);
  const fs::path list = write_list(folder.path(), jobs);
  const std::string port = std::to_string(test::free_port());
  std::vector<test::Process> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    processes.push_back({{(test::build_dir() / "job_list_rank").string(), list.string()},
                         {{"RANK", std::to_string(rank)},
                          {"LOCAL_RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(ranks)},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port}}});
  }
  for (const test::Ended& ended : test::run_processes(processes, 300)) {
    INFO(ended.output);
    REQUIRE(ended.code == 0);
  }
  check_against_threads(folder.path(), jobs);
}

// A mesh of up to eight ranks trains as one rank does: losses, gradients and norms agree closely, and to the
// bit where the same sums are taken in the same order.
#include <ATen/ops/empty.h>
#include <ATen/ops/norm.h>

#include <map>

#include "parallel/checkpoint/checkpoint.h"
#include "test/app/train/mesh_grid.h"
#include "test/support/catch.h"

using namespace pptrain;
using test::GridJob;
using test::Overrides;

namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> steps_of(const test::JobResult& result) {
  std::vector<nlohmann::json> steps;
  for (const std::string& line : result.metrics) steps.push_back(nlohmann::json::parse(line));
  return steps;
}

double relative_difference(const nlohmann::json& a, const nlohmann::json& b, const char* key) {
  const double expected = b.at(key).get<double>();
  return std::abs(a.at(key).get<double>() - expected) / std::abs(expected);
}

void check_steps(const std::vector<nlohmann::json>& steps, const std::vector<nlohmann::json>& reference) {
  REQUIRE(steps.size() == 3);
  REQUIRE(reference.size() == 3);
  CHECK(relative_difference(steps[0], reference[0], "loss") <= 1e-6);
  CHECK(relative_difference(steps[2], reference[2], "loss") <= 1e-5);
  CHECK(relative_difference(steps[0], reference[0], "grad_norm") <= 1e-5);
  CHECK(steps[2].at("tokens") == reference[2].at("tokens"));
}

at::Tensor read(const checkpoint::Reader& reader, const std::string& file, const std::string& name) {
  at::Tensor tensor = at::empty(reader.global_shape(file, name), at::kFloat);
  reader.read(file, name, tensor);
  return tensor;
}

// After one step AdamW's first moment is the gradient, scaled alike on all layouts.
void check_first_gradients(const fs::path& run_dir, const fs::path& reference_dir) {
  constexpr const char* file = "adamw.exp_avg";
  const checkpoint::Reader reader(run_dir / "checkpoints/step_1"),
      reference(reference_dir / "checkpoints/step_1");
  REQUIRE(reader.names(file) == reference.names(file));
  REQUIRE(reader.names(file).size() > 50);
  double worst = 0;
  std::string where;
  for (const std::string& name : reader.names(file)) {
    const at::Tensor expected = read(reference, file, name);
    const double norm = expected.norm().item<double>();
    const double difference = read(reader, file, name).sub(expected).norm().item<double>();
    if (difference > worst * norm) {
      worst = norm > 0 ? difference / norm : 1;
      where = name;
    }
  }
  CAPTURE(where);
  // The few weights of a norm of queries or keys get sums of terms that nearly cancel.
  CHECK(worst <= (where.find("_norm.weight") != std::string::npos ? 2e-5 : 1e-5));
}

class Grid {
 public:
  explicit Grid(bool experts) : text_(test::grid_job_text(experts)) {}

  void check(const GridJob& job) {
    CAPTURE(job.name());
    const fs::path reference_dir = reference(job);
    const fs::path run_dir = folder_.path() / "run";
    fs::remove_all(run_dir);
    const test::JobResult result =
        test::run_small_job(text_, run_dir, test::with(job.common(), job.layout()));
    REQUIRE(result.exit_code == 0);
    check_steps(steps_of(result), steps_of(test::read_result(reference_dir, 0)));
    check_first_gradients(run_dir, reference_dir);
    const auto [known, first] = bits_.emplace(job.bit_class(), result.metrics);
    if (!first) {
      CHECK(result.metrics == known->second);
      ++equal_bits_;
    }
  }

  int equal_bits() const { return equal_bits_; }

 private:
  // Where the job of one rank ran on the same samples.
  fs::path reference(const GridJob& job) {
    const Overrides overrides = test::with(job.common(), job.one_rank());
    const auto [known, first] =
        references_.emplace(overrides, folder_.path() / fmt::format("reference_{}", references_.size()));
    if (first) {
      const test::JobResult result = test::run_small_job(text_, known->second, overrides);
      REQUIRE(result.exit_code == 0);
      REQUIRE(test::steps_over(result, test::grid_clip) > 0);
    }
    return known->second;
  }

  std::string text_;
  test::TemporaryFolder folder_;
  std::map<Overrides, fs::path> references_;
  std::map<std::string, std::vector<std::string>> bits_;
  int equal_bits_ = 0;
};

// One step on each mesh in turn, from the checkpoint that the mesh before it left.
void check_relay(bool experts, const std::vector<mesh::MeshShape>& meshes, const std::string& schedule) {
  const std::string text = test::grid_job_text(experts);
  const test::TemporaryFolder folder;
  GridJob job{.mesh = meshes.front()};
  const auto steps = [](size_t count) -> Overrides {
    return {fmt::format("train.steps={}", count), "lr_schedule.name=constant", "checkpoint.resume=auto"};
  };
  const test::JobResult whole = test::run_small_job(
      text, folder.path() / "whole", test::with(job.common(), job.one_rank(), steps(meshes.size())));
  const fs::path run_dir = folder.path() / "relay";
  for (size_t step = 0; step < meshes.size(); ++step) {
    job.mesh = meshes[step];
    job.schedule = job.mesh.pp > 1 ? schedule : "1f1b";
    CAPTURE(job.name());
    const test::JobResult result =
        test::run_small_job(text, run_dir, test::with(job.common(), job.layout(), steps(step + 1)));
    REQUIRE(result.exit_code == 0);
  }
  const auto relay = steps_of(test::read_result(run_dir, 0)), expected = steps_of(whole);
  REQUIRE(relay.size() == meshes.size());
  for (size_t step = 0; step < meshes.size(); ++step) {
    CAPTURE(step);
    CHECK(relative_difference(relay[step], expected[step], "loss") <= 1e-5);
    CHECK(relative_difference(relay[step], expected[step], "grad_norm") <= 1e-4);
  }
}

}  // namespace

TEST_CASE("a dense model on meshes of up to eight ranks, all pairs of axes and options", "[dense]") {
  Grid grid(false);
  const std::vector<GridJob> jobs = test::covering_jobs(test::grid_jobs(false));
  REQUIRE(jobs.size() > 50);
  for (const GridJob& job : jobs) grid.check(job);
  CHECK(grid.equal_bits() > 5);
}

TEST_CASE("a model with experts on meshes of up to eight ranks, all pairs of axes and options", "[experts]") {
  Grid grid(true);
  const std::vector<GridJob> jobs = test::covering_jobs(test::grid_jobs(true));
  REQUIRE(jobs.size() > 80);
  for (const GridJob& job : jobs) grid.check(job);
  CHECK(grid.equal_bits() > 5);
}

TEST_CASE("a run goes on from the checkpoint of any other mesh", "[dense]") {
  check_relay(false,
              {{.dp_shard = 2, .tp = 4},
               {.pp = 2, .dp_replicate = 2, .cp = 2},
               {.dp_shard = 2, .cp = 4},
               {.pp = 2, .dp_shard = 2, .tp = 2},
               {.dp_replicate = 2}},
              "zbv");
}

TEST_CASE("a run with experts goes on from the checkpoint of any other mesh", "[experts]") {
  check_relay(true,
              {{.dp_shard = 2, .tp = 4, .ep = 8},
               {.pp = 2, .dp_replicate = 2, .cp = 2},
               {.dp_shard = 2, .cp = 4, .ep = 2},
               {.pp = 2, .dp_shard = 2, .tp = 2, .ep = 4},
               {.dp_replicate = 2}},
              "zb_h1");
}

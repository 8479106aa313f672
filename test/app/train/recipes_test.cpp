// The shipped recipes for large meshes resolve to a plan, and small versions of them train on the same mesh.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/resolve/load_plan.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/fault/shutdown.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;

namespace {

namespace fs = std::filesystem;

const fs::path configs = test::source_dir() / "configs";

app::Plan load(const std::string& name, const test::Overrides& more) {
  const test::Overrides overrides =
      test::with(test::Overrides{fmt::format("data.path=\"{}\"", test::shakespeare.string())}, more);
  return app::load_plan((configs / (name + ".toml")).string(), overrides);
}

}  // namespace

TEST_CASE("on GPUs the exchanges of every recipe leave room for kernels, or its head cannot be spread") {
  int several = 0, spread = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(configs)) {
    const std::string name = file.path().stem();
    // finetune.toml needs a model's directory.
    if (file.path().extension() != ".toml" || name == "reference" || name == "finetune") continue;
    CAPTURE(name);
    const auto fits = [&](const std::string& head) {
      const auto blocks = gpu_blocks(load(name, {"run.device=\"cuda\"", "distributed.pp_head=" + head}));
      return blocks.fit() && blocks.all() <= mesh::GpuBlocks::most;
    };
    CHECK(fits("last"));
    const app::Plan plan = load(name, {});
    several += plan.mesh.world_size() > 1;
    if (plan.mesh.pp == 1) continue;
    try {
      const bool fit = fits("spread");
      CHECK(fit);
      ++spread;
    } catch (const UsageError& error) {
      CHECK_THAT(error.what(), test::contains_text("NCCL may have 96 thread blocks on a GPU"));
    }
  }
  CHECK(several > 5);
  CHECK(spread > 3);
}

TEST_CASE("recipes of large meshes resolve, and their small twins learn on the same mesh") {
  for (const std::string name :
       {"llama3_70b_tp4_pp4_fsdp2", "qwen3_8b_pp2_fsdp4", "qwen3_30b_a3b_pp2_ep4_cp4"}) {
    CAPTURE(name);
    const test::TemporaryFolder folder;
    const app::Plan recipe = load(name, {});
    const app::Plan twin = load(name + "_small", {fmt::format("run.dir=\"{}\"", folder.path().string()),
                                                  "train.steps=8", "metrics.peak_tflops=1"});
    CHECK(recipe.mesh.describe() == twin.mesh.describe());
    CHECK(recipe.mesh.ep == twin.mesh.ep);
    CHECK(recipe.job.optimizer.name == twin.job.optimizer.name);
    CHECK(recipe.job.distributed.pp_schedule == twin.job.distributed.pp_schedule);

    spdlog::set_level(spdlog::level::warn);
    const fault::Shutdown shutdown;
    const int code =
        app::run_ranks(twin, [&](app::RunContext& context) { return app::train_to_end(context, shutdown); });
    const test::JobResult result = test::read_result(folder.path(), code);
    REQUIRE(code == 0);
    REQUIRE(result.metrics.size() == 8);
    const double first = nlohmann::json::parse(result.metrics.front()).at("loss");
    const double last = nlohmann::json::parse(result.metrics.back()).at("loss");
    CHECK(first == Approx(std::log(256.0)).epsilon(0.02));
    CHECK(last < first - 0.2);
  }
}

// Sharded data parallelism gives the bits of the same number of replicas under every schedule and policy, and
// each rank holds only its shard.
#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>

#include "app/data/datasets.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/optim/optimizer.h"
#include "parallel/pipeline/executor.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/core/nn/gradients.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"
#include "test/support/covering.h"
#include "test/support/paths.h"

using namespace pptrain;
using pptrain::test::checkpoint_elements;
using pptrain::test::Combination;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::steps_over;
using pptrain::test::take_pairs;
using pptrain::test::TemporaryFolder;
using pptrain::test::whole_bytes;
using pptrain::test::with;

namespace {

struct Result {
  JobResult job;
  std::map<std::string, std::string> elements;
};

Result run(const std::filesystem::path& run_dir, const Overrides& overrides) {
  std::filesystem::remove_all(run_dir);
  Result result{.job = run_small_job(small_job_text(), run_dir, overrides), .elements = {}};
  result.elements = checkpoint_elements(run_dir);
  return result;
}

void check_equal(const Result& reference, const Result& other) {
  REQUIRE(other.job.exit_code == 0);
  REQUIRE(reference.job.metrics.size() >= 2);
  REQUIRE(reference.elements.size() > 30);
  CHECK(other.job.metrics == reference.job.metrics);
  CHECK(other.elements == reference.elements);
}

std::string key(const std::string& name, int value) {
  return fmt::format("distributed.{}={}", name, value);
}

Overrides schedule_of(const std::string& name, int pp) {
  return {"distributed.pp_schedule=" + name, key("pp", pp)};
}

Overrides shards(int dp_shard, int dp_replicate = 1) {
  return {key("dp_shard", dp_shard), key("dp_replicate", dp_replicate)};
}

const Overrides reshard = {"distributed.reshard_after_forward=true"};
const Overrides keep = {"distributed.reshard_after_forward=false"};
const Overrides every_microbatch = {"distributed.reduce_gradients=microbatch"};

constexpr double grad_clip = 0.2;

// A layer has two or three blocks of 1024 elements (kernels::squares_block), the embedding four.
const Overrides tiny_shards = {"model.hidden_size=16",
                               "model.intermediate_size=40",
                               "model.num_attention_heads=2",
                               "model.num_key_value_heads=1",
                               "train.seq_len=8",
                               "train.micro_batch_size=1",
                               "train.grad_accum_steps=4",
                               "train.steps=2",
                               "eval.interval=2",
                               "eval.batches=1",
                               fmt::format("train.grad_clip={}", grad_clip)};

const std::vector<std::string> some_schedules = {"1f1b", "gpipe", "zb_h1", "zbv", "interleaved_1f1b"};

}  // namespace

TEST_CASE("dp_shard gives the bits of dp_replicate under every schedule and policy", "[sharding]") {
  const TemporaryFolder folder;
  const std::vector<Overrides> reduces = {{}, every_microbatch};
  const std::vector<Overrides> policies = {keep, reshard};
  constexpr int fewest = 2, counts = 3, pipelines = 2;
  const auto rows = take_pairs(
      std::array<size_t, 5>{counts, reduces.size(), some_schedules.size(), pipelines, policies.size()});
  for (size_t r = 0; r < counts; ++r) {
    const int ranks = fewest + static_cast<int>(r);
    for (size_t i = 0; i < reduces.size(); ++i) {
      const Overrides base = with(tiny_shards, reduces[i]);
      const Result reference = run(folder.path() / "reference", with(base, shards(1, ranks)));
      REQUIRE(steps_over(reference.job, grad_clip) > 0);
      for (const Combination& row : rows) {
        if (row[0] != r || row[1] != i) continue;
        const Overrides layout = schedule_of(some_schedules[row[2]], static_cast<int>(row[3]) + 1);
        CAPTURE(ranks, reduces[i], layout, policies[row[4]]);
        check_equal(reference,
                    run(folder.path() / "shards", with(base, layout, shards(ranks), policies[row[4]])));
      }
      if (ranks != 4) continue;
      for (const Overrides& policy : policies) {
        CAPTURE(reduces[i], policy);
        check_equal(reference, run(folder.path() / "hybrid", with(base, shards(2, 2), policy)));
        check_equal(reference,
                    run(folder.path() / "hybrid", with(base, shards(2, 2), schedule_of("zbv", 2), policy)));
      }
      check_equal(reference,
                  run(folder.path() / "replicas", with(base, shards(1, 4), schedule_of("zb_h1", 2))));
    }
  }
}

TEST_CASE("tied, bfloat16, recomputed, post-validated and FP8 jobs are no exceptions", "[sharding]") {
  const TemporaryFolder folder;
  const std::vector<Overrides> extras = {
      {"train.dtype=bf16", "model.tie_word_embeddings=true"},
      {"train.dtype=bf16", "train.recompute=full", "model.arch=qwen3"},
      {"model.tie_word_embeddings=true", "optimizer.post_validation=true", "train.steps=5"},
      {"optimizer.post_validation=true", "train.steps=5", "train.grad_clip=0", "train.dtype=bf16"},
      {"train.dtype=bf16", "train.fp8=rowwise", "model.intermediate_size=48"}};
  const std::vector<Overrides> reduces = {{}, every_microbatch};
  const std::vector<Overrides> layouts = {schedule_of("1f1b", 1), schedule_of("1f1b", 2),
                                          schedule_of("zb_h2", 2), schedule_of("zbv", 2)};
  const std::vector<Overrides> policies = {keep, reshard};
  const auto rows = take_pairs(std::array{extras.size(), reduces.size(), layouts.size(), policies.size()});
  CHECK(rows.size() >= 16);
  for (size_t e = 0; e < extras.size(); ++e) {
    for (size_t r = 0; r < reduces.size(); ++r) {
      const Overrides base = with(tiny_shards, extras[e], reduces[r]);
      const Result reference = run(folder.path() / "reference", with(base, shards(1, 2)));
      for (const Combination& row : rows) {
        if (row[0] != e || row[1] != r) continue;
        const Overrides layout = with(layouts[row[2]], policies[row[3]]);
        CAPTURE(base, layout);
        check_equal(reference, run(folder.path() / "shards", with(base, layout, shards(2))));
      }
    }
  }
}

TEST_CASE("PyTorch's own UNSHARD and RESHARD gather and free shards", "[sharding]") {
  const TemporaryFolder folder;
  const std::filesystem::path file =
      test::source_dir() / "test/golden/schedules/interleaved_1f1b_p2_v2_m4_with_communication.csv";
  const Result reference = run(folder.path() / "reference", with(tiny_shards, shards(1, 2)));
  for (const Overrides& policy : {keep, reshard}) {
    CAPTURE(policy);
    check_equal(reference, run(folder.path() / "file",
                               with(tiny_shards, schedule_of(file.string(), 2), shards(2), policy)));
  }
}

TEST_CASE("a run resumes on any layout, to the bit where data ranks are as many", "[sharding]") {
  const TemporaryFolder folder;
  Overrides base =
      with(tiny_shards, {"train.steps=6", "checkpoint.interval=4", "checkpoint.keep_last_n=0",
                         "eval.interval=0", "train.dtype=bf16", "model.tie_word_embeddings=true"});
  std::erase(base, "eval.batches=1");
  const auto resume = [&](const Overrides& layout) {
    const auto run_dir = folder.path() / "resumed";
    std::filesystem::remove_all(run_dir);
    std::filesystem::copy(folder.path() / "whole", run_dir, std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(run_dir / "checkpoints/step_6");
    std::ofstream(run_dir / "checkpoints/latest") << "step_4\n";
    Result result{.job = run_small_job(small_job_text(), run_dir,
                                       with(base, layout, Overrides{"checkpoint.resume=auto"})),
                  .elements = {}};
    result.elements = checkpoint_elements(run_dir);
    return result;
  };
  const Result sharded = run(folder.path() / "whole", with(base, shards(2), schedule_of("zb_h1", 2)));
  for (const Overrides& layout :
       {with(shards(1, 2), schedule_of("1f1b", 1)), with(shards(2), schedule_of("zbv", 2), reshard),
        with(shards(1, 2), schedule_of("gpipe", 2))}) {
    CAPTURE(layout);
    check_equal(sharded, resume(layout));
  }
  const Result replicated = run(folder.path() / "whole", with(base, shards(1, 2), schedule_of("1f1b", 2)));
  check_equal(replicated, resume(with(shards(2), schedule_of("1f1b", 1))));
  // One rank has both data ranks' rows in each microbatch: the same samples, summed in another order.
  const Result alone = resume({"train.micro_batch_size=2"});
  REQUIRE(alone.job.metrics.size() == replicated.job.metrics.size());
  const auto last_loss = [](const Result& result) {
    double loss = 0;
    for (const std::string& line : result.job.metrics) loss = nlohmann::json::parse(line).value("loss", loss);
    return loss;
  };
  CHECK(test::relative_error(last_loss(alone), last_loss(replicated)) <= 2e-3);
}

namespace {

struct Held {
  int64_t masters = 0, states = 0, gradients = 0;
};

// The bytes on each rank of the job, right after its parameters have values.
std::vector<Held> held_by(const Overrides& overrides) {
  const TemporaryFolder folder;
  const app::Plan plan = pptrain::test::small_plan(small_job_text(), folder.path(), overrides);
  std::vector<Held> held(plan.mesh.world_size());
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context);
    model.initialise();
    Held& own = held[context.mesh.rank()];
    for (const app::RankModel::RankStage& stage : model.stages()) {
      nn::ParameterStore& parameters = stage.stage->parameters();
      for (const nn::Buffer* shard : parameters.buffers()) own.masters += shard->master.numel();
      for (nn::ParameterGroup& group : parameters.groups()) {
        for (const nn::Buffer* buffer : group.buffers())
          own.gradients += static_cast<int64_t>(buffer->whole_grad.storage().nbytes());
      }
    }
    for (const checkpoint::StageContents& stage : model.contents()) {
      for (const auto& [file, tensors] : stage.files) {
        for (const auto& tensor : tensors) own.states += file == "model" ? 0 : tensor.tensor.numel();
      }
    }
    return 0;
  });
  return held;
}

}  // namespace

TEST_CASE("a rank of two shards holds half of masters and states", "[sharding]") {
  const Overrides base = {"model.hidden_size=256", "model.intermediate_size=704",
                          "model.num_hidden_layers=2"};
  const Held whole = held_by(with(base, shards(1, 2)))[0];
  int64_t states = 0;
  for (const Held& half : held_by(with(base, shards(2)))) {
    CHECK(static_cast<double>(half.masters) ==
          Approx(0.5 * static_cast<double>(whole.masters)).epsilon(0.03));
    CHECK(half.gradients >= whole.gradients);  // whole until they are summed
    states += half.states;
  }
  CHECK(states == whole.states);  // each element once
  for (const Held& half : held_by(with(base, shards(2), every_microbatch))) CHECK(half.gradients == 0);
}

TEST_CASE("streamed weights are whole a few groups at a time, and nothing of a step is left", "[sharding]") {
  for (const auto& [schedule, pp] : std::vector<std::pair<std::string, int>>{
           {"1f1b", 1}, {"1f1b", 2}, {"zbv", 2}, {"interleaved_1f1b", 2}}) {
    for (const Overrides& policy : {keep, reshard}) {
      for (const Overrides& reduce : {Overrides{}, every_microbatch}) {
        const TemporaryFolder folder;
        const app::Plan plan =
            pptrain::test::small_plan(small_job_text(), folder.path(),
                                      with(tiny_shards, Overrides{"model.num_hidden_layers=8"},
                                           schedule_of(schedule, pp), shards(2), policy, reduce));
        std::mutex mutex;  // Catch's assertions are not for several threads at once
        app::run_ranks(plan, [&](app::RunContext& context) {
          app::RankModel model(context);
          model.initialise();
          const auto sources = app::open_data(plan.job, plan.model.vocab, {}, app::Wanted::training);
          const data::DataLoader loader(app::training_streams(sources), app::loader_options(context), true,
                                        0);
          pipeline::Executor executor(model.pipeline_stages(), context.mesh.along(mesh::Axis::pp),
                                      plan.schedule);
          for (int step = 0; step < 3; ++step) {
            model.zero_grad();
            executor.run(loader.step(0).microbatches);
            model.global_loss();
            const std::lock_guard lock(mutex);
            CAPTURE(schedule, pp, policy, reduce, step, context.mesh.rank());
            for (const app::RankModel::RankStage& own : model.stages()) {
              const int most = own.weights->take_most_whole_groups();
              CHECK(own.weights->whole_groups() == 0);
              CHECK(own.stage->saved_bytes() == 0);
              for (nn::ParameterGroup& group : own.stage->parameters().groups())
                CHECK(whole_bytes(group) == 0);
              if (step == 0) continue;  // this step learns the order of uses
              CHECK(most >= 2);
              if (policy == reshard) CHECK(most <= 3);
            }
          }
          return 0;
        });
      }
    }
  }
}

TEST_CASE("dp_shard = -1 takes what the other axes leave of the world", "[sharding]") {
  const auto plan = [](const Overrides& overrides, int64_t world) {
    return app::parse_plan(small_job_text(), "small.toml", overrides, {.world = world});
  };
  const Overrides rest = {"distributed.dp_shard=-1", "distributed.pp=2", "distributed.dp_replicate=2",
                          "train.grad_accum_steps=2"};
  CHECK(plan(rest, 12).mesh.dp_shard == 3);
  CHECK(plan(rest, 4).mesh.dp_shard == 1);
  CHECK(plan({"distributed.dp=-1"}, 5).mesh.dp_shard == 5);
  CHECK_THROWS_WITH(plan(rest, 6), pptrain::test::contains_text(
                                       "pp 2 x dp_replicate 2 x cp 1 x tp 1 = 4 does not divide 6"));
  CHECK_THROWS_WITH(plan(rest, 0), pptrain::test::contains_text("--world N"));
  CHECK_THROWS_WITH(plan({"distributed.dp_shard=2"}, 3),
                    pptrain::test::contains_text("2 ranks (dp_shard 2)"));
}

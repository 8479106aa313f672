// Runs with adapters and with frozen groups: equal bits on every layout, and checkpoints of the trained
// weights.
#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "app/convert/convert.h"
#include "app/data/datasets.h"
#include "app/forecast/device_model.h"
#include "app/forecast/prediction.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/run/base_weights.h"
#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "parallel/pipeline/executor.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/models/allocation_counter.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

struct LoraResult {
  JobResult job;
  std::map<std::string, std::string> elements;
};

LoraResult run(const fs::path& run_dir, const Overrides& overrides) {
  LoraResult result{.job = run_small_job(small_job_text(), run_dir, overrides), .elements = {}};
  REQUIRE(result.job.exit_code == 0);
  result.elements = checkpoint_elements(run_dir);
  return result;
}

void check_equal(const LoraResult& reference, const LoraResult& other) {
  REQUIRE(reference.job.metrics.size() >= 3);
  CHECK(other.job.metrics == reference.job.metrics);
  CHECK(other.elements == reference.elements);
}

const Overrides adapters = {"lora.rank=3", "lora.alpha=6", "train.grad_accum_steps=4",
                            "train.micro_batch_size=1"};
const Overrides frozen_groups = {
    "optimizer.groups=[{match=\"layers.*.mlp.*\", frozen=true}, {match=\"embedding\", frozen=true}]",
    "train.grad_accum_steps=4", "train.micro_batch_size=1"};

Overrides lora_layout(const std::string& schedule, int pp, int dp_shard = 1) {
  return {"distributed.pp_schedule=" + schedule, fmt::format("distributed.pp={}", pp),
          fmt::format("distributed.dp_shard={}", dp_shard)};
}

}  // namespace

TEST_CASE("adapters and frozen groups have equal bits on every pipeline and shard", "[lora]") {
  const TemporaryFolder folder;
  const Overrides job = with(GENERATE(adapters, frozen_groups), {"model.tie_word_embeddings=true"});
  const auto dtype = GENERATE(as<std::string>{}, "train.dtype=fp32", "train.dtype=bf16");
  const Overrides base = with(job, {dtype});
  const LoraResult reference = run(folder.path() / "one", base);
  CHECK(reference.elements.size() == (job[0] == "lora.rank=3" ? 3 * 4 * 7 * 2 : 3 * (4 * 6 + 1)));
  check_equal(reference, run(folder.path() / "a", with(base, lora_layout("zb_h1", 2))));
  check_equal(reference,
              run(folder.path() / "b", with(with(base, lora_layout("zbv", 2)), {"train.recompute=full"})));

  const Overrides two = with(base, {"train.grad_accum_steps=2"});
  const LoraResult replicas = run(folder.path() / "two", with(two, {"distributed.dp_replicate=2"}));
  check_equal(replicas, run(folder.path() / "c", with(two, lora_layout("1f1b", 1, 2))));
  check_equal(replicas, run(folder.path() / "d", with(two, lora_layout("zb_h1", 2, 2))));
  check_equal(replicas, run(folder.path() / "e", with(with(two, lora_layout("zb_h1", 2, 2)),
                                                      {"distributed.reshard_after_forward=true"})));
}

TEST_CASE("a run of adapters goes on from its checkpoint on another layout, and learns", "[lora]") {
  const TemporaryFolder folder;
  const Overrides base = with(adapters, {"train.steps=6"});
  const LoraResult whole = run(folder.path() / "whole", base);
  const auto run_dir = folder.path() / "parts";
  run(run_dir, with(base, {"train.steps=3", "lr_schedule.name=constant"}));
  const Overrides resumed = with(base, {"checkpoint.resume=auto", "lr_schedule.name=constant"});
  const LoraResult there = run(run_dir, with(resumed, lora_layout("zb_h1", 2)));
  const LoraResult uninterrupted = run(folder.path() / "constant", with(base, {"lr_schedule.name=constant"}));
  CHECK(there.elements == uninterrupted.elements);
  CHECK(there.elements != whole.elements);

  const auto refused = [&](const Overrides& changes) {
    try {
      return run_small_job(small_job_text(), run_dir, with(resumed, changes)).exit_code == 2;
    } catch (const UsageError&) {
      return true;
    }
  };
  CHECK(refused({"run.seed=7", "checkpoint.data=continue"}));
  CHECK(refused({"lora.rank=4"}));
  CHECK(refused({"lora.rank=0"}));
}

TEST_CASE("adapters of tensor- and context-parallel ranks and of replicas train as one rank's do", "[lora]") {
  const TemporaryFolder folder;
  const Overrides base = with(adapters, {"train.grad_accum_steps=2", "train.micro_batch_size=2"});
  const auto loss = [&](const std::string& name, const Overrides& more) {
    const LoraResult result = run(folder.path() / name, with(base, more));
    std::vector<double> losses;
    for (const std::string& line : result.job.metrics) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("loss")) losses.push_back(record["loss"]);
    }
    return losses;
  };
  const std::vector<double> alone = loss("alone", {});
  REQUIRE(alone.size() == 3);
  for (const Overrides& more : std::vector<Overrides>{{"distributed.tp=2"},
                                                      {"distributed.tp=4"},  // key-value heads are copied
                                                      {"distributed.cp=2"},
                                                      {"distributed.tp=2", "distributed.pp=2"}}) {
    CAPTURE(more);
    const std::vector<double> other = loss("other", more);
    REQUIRE(other.size() == alone.size());
    for (size_t i = 0; i < alone.size(); ++i) CHECK(relative_error(other[i], alone[i]) <= 1e-5);
  }
}

TEST_CASE("sparse models train adapters of attention, with frozen experts", "[lora]") {
  const TemporaryFolder folder;
  const Overrides sparse = with(adapters, {"model.arch=qwen3_moe", "model.num_experts=4",
                                           "model.num_experts_per_tok=2", "model.moe_intermediate_size=16"});
  const LoraResult one = run(folder.path() / "one", sparse);
  CHECK(one.elements.size() == 3 * 4 * 4 * 2);
  const LoraResult two =
      run(folder.path() / "two", with(sparse, {"distributed.pp=2", "distributed.pp_schedule=zb_h1"}));
  check_equal(one, two);
  run(folder.path() / "ep", with(sparse, {"distributed.dp_shard=2", "distributed.ep=2"}));
}

TEST_CASE("adapters of parts of a tensor become a whole model alone") {
  const TemporaryFolder folder;
  run(folder.path() / "run", with(adapters, {"model.arch=phi3"}));
  app::ConvertArguments arguments{.from = (folder.path() / "run").string(),
                                  .to = (folder.path() / "adapter").string()};
  const auto fault = [&]() -> std::string {
    try {
      app::convert(arguments);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(fault(), contains_text("peft knows those of whole tensors alone"));
  CHECK(!fs::exists(arguments.to));
  arguments.merge = true;
  CHECK(fault().empty());
  CHECK(fs::exists(folder.path() / "adapter/model.safetensors"));
}

TEST_CASE("what lora and frozen groups cannot do is refused before a rank starts", "[lora]") {
  const TemporaryFolder folder;
  const auto fault = [&](const Overrides& overrides) -> std::string {
    try {
      small_plan(small_job_text(), folder.path() / "run", overrides);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(fault(adapters).empty());
  CHECK_THAT(fault({"lora.rank=4", "lora.dropout=0.1"}), contains_text("dropout"));
  CHECK_THAT(fault({"lora.alpha=4"}), contains_text("lora.rank"));
  CHECK_THAT(fault({"lora.rank=4", "lora.targets=[\"*.nothing\"]"}), contains_text("matches no parameter"));
  const std::string norm = fault({"lora.rank=4", "lora.targets=[\"*norm\"]"});
  CHECK_THAT(norm, contains_text("norm.weight, which can have no adapter"));
  CHECK_THAT(fault({"lora.rank=4", "optimizer.groups=[{match=\"norm\", lr_scale=2}]"}),
             contains_text("adapters alone learn"));
  CHECK_THAT(fault({"lora.rank=4", "optimizer.groups=[{match=\"norm\", frozen=true}]"}),
             contains_text("everything but the adapters is frozen"));
  CHECK_THAT(fault({"optimizer.groups=[{match=\"*.q.weight\", frozen=true}]"}),
             contains_text("freeze both, or neither"));
  CHECK_THAT(fault({"optimizer.groups=[{match=\"*\", frozen=true}]"}), contains_text("nothing would learn"));
}

TEST_CASE("frozen weights by chance are those of a seed and a range", "[lora]") {
  config::JobConfig job;
  job.run.seed = 5;
  CHECK(app::base_of(job) == app::Base());
  job.lora.rank = 2;
  CHECK(app::base_of(job).fingerprint == "run.seed = 5");
  job.model.initializer_range = 0.5;
  CHECK(app::base_of(job).fingerprint == "run.seed = 5, model.initializer_range = 0.5");
  CHECK_THROWS_AS(
      app::check_base("step_4", {.source = "run.seed = 5", .fingerprint = "run.seed = 5"}, app::base_of(job)),
      UsageError);
}

namespace {

// The most bytes of tensors that a rank holds from its start through two steps.
int64_t peak_of_rank(app::RunContext& context) {
  const app::Plan& plan = context.plan;
  const AllocationCounter counter;
  app::RankModel model(context);
  model.initialise();
  const auto sources = app::open_data(plan.job, plan.model.vocab, {}, app::Wanted::training);
  const data::DataLoader loader(app::training_streams(sources), app::loader_options(context), true, 0);
  pipeline::Executor executor(model.pipeline_stages(), context.mesh.along(mesh::Axis::pp), plan.schedule);
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    executor.run(loader.step(step).microbatches);
    model.global_loss();
    model.apply(/*lr=*/1e-3, /*grad_scale=*/1);
  }
  return counter.peak();
}

}  // namespace

TEST_CASE("a rank of adapters holds what its plan says, within 3 %", "[lora]") {
  const WithoutOneDnn tensors_alone;
  const Overrides job = {"model.hidden_size=256",
                         "model.intermediate_size=704",
                         "model.num_hidden_layers=8",
                         "model.vocab_size=1024",
                         "train.seq_len=64",
                         "train.grad_accum_steps=4",
                         "lora.rank=8"};
  for (const Overrides& layout_of_job :
       {lora_layout("1f1b", 1), lora_layout("1f1b", 2), lora_layout("zb_h1", 2), lora_layout("zbv", 2),
        lora_layout("1f1b", 1, 2), with(lora_layout("zb_h1", 2), {"train.recompute=full"}),
        with(lora_layout("zb_h1", 2), {"train.dtype=bf16"})}) {
    const TemporaryFolder folder;
    const app::Plan plan = small_plan(small_job_text(), folder.path(), with(job, layout_of_job));
    const app::Prediction predicted = app::predict(plan, app::CostSource{.device = app::find_device("cpu")});
    std::mutex mutex;  // Catch's assertions are not for several threads at once
    app::run_ranks(plan, [&](app::RunContext& context) {
      const int64_t held = peak_of_rank(context);
      const auto rank = static_cast<size_t>(context.mesh.coordinate(mesh::Axis::pp));
      const std::lock_guard lock(mutex);
      CAPTURE(layout_of_job, context.mesh.rank());
      CHECK(static_cast<double>(held) ==
            Approx(static_cast<double>(predicted.bytes[rank].total())).epsilon(0.03));
      return 0;
    });
  }
}

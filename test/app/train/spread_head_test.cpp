// A head spread over all pipeline ranks gives the same bits under every schedule of the same number of ranks.
// It agrees with a head on the last stage up to rounding.
#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "app/forecast/prediction.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/base/error.h"
#include "core/io/files.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/close_runs.h"
#include "test/support/catch.h"

using namespace pptrain::test;

namespace {

const Overrides spread_job =
    with(smooth_steps, {"model.num_hidden_layers=8", "train.steps=3", "train.grad_accum_steps=6",
                        "eval.interval=3", "eval.batches=2", "data.val_fraction=0.1"});
const Overrides spread = {"distributed.pp_head=spread"};

}  // namespace

TEST_CASE("a spread head gives the same bits under every schedule, and the whole head's losses") {
  for (const auto& [ranks, dtype, near] :
       {std::tuple(2, "fp32", apart_fp32), std::tuple(3, "bf16", apart_bf16)}) {
    const Overrides job =
        with(spread_job, {fmt::format("distributed.pp={}", ranks), fmt::format("train.dtype={}", dtype)});
    const JobResult whole = run(job), reference = run(with(job, spread));
    check_near(reference, whole, near);
    CHECK(reference.metrics != whole.metrics);  // sums over the vocabulary have another order
    for (const std::string& name : pptrain::schedule::training_schedule_names()) {
      CAPTURE(ranks, dtype, name);
      const JobResult other = run(with(job, spread, Overrides{"distributed.pp_schedule=" + name}));
      CHECK(other.metrics == reference.metrics);
      CHECK(other.checksums == reference.checksums);
    }
  }
}

TEST_CASE("a spread head goes with every axis") {
  const std::vector<Overrides> axes = {
      {"distributed.dp_replicate=2"},
      {"distributed.dp_shard=2", "distributed.reshard_after_forward=false"},
      {"distributed.dp_shard=2", "distributed.reshard_after_forward=true"},
      {"distributed.dp_shard=2", "distributed.reduce_gradients=microbatch"},
      {"distributed.cp=2"},
      {"distributed.tp=2"},
      {"distributed.tp=2", "model.tie_word_embeddings=true", "distributed.pp_schedule=zbv"},
      {"model.tie_word_embeddings=true"},
      {"model.tie_word_embeddings=true", "distributed.dp_shard=2"},
      {"model.tie_word_embeddings=true", "distributed.dp_shard=3", "distributed.reduce_gradients=microbatch",
       "model.arch=gpt2", "model.num_key_value_heads=4"},
      {"model.tie_word_embeddings=true", "distributed.cp=2", "distributed.tp=2"},
      {"distributed.pp_schedule=search", "distributed.pp_stages_per_rank=1"},
      {"data.lengths=exact", "data.document_end=10", "distributed.dp_replicate=2"},
      {"train.recompute=full"},
      {"model.arch=gemma2", "model.head_dim=8", "model.tie_word_embeddings=true"},
      {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
       "model.moe_intermediate_size=16", "distributed.dp_shard=2", "distributed.ep=2"},
      {"metrics.microbatch_losses=true"},
      {"train.label_smoothing=0.1", "train.z_loss=0.01"},
      {"train.z_loss=0.01"},
      {"train.z_loss=0.01", "distributed.tp=2"},
      {"train.label_smoothing=0.3", "distributed.tp=2"},
      {"lora.rank=2"}};
  for (const Overrides& axis : axes) {
    CAPTURE(axis);
    const Overrides job = with(with(spread_job, {"distributed.pp=2", "train.dtype=fp32"}), axis);
    check_near(run(with(job, spread)), run(job), apart_fp32);
  }
}

TEST_CASE("a run with a spread head goes on from its checkpoints, as it was or with a whole head") {
  for (const std::string tied : {"false", "true"}) {
    const std::string text = small_job_text();
    const TemporaryFolder folder;
    const Overrides job = with(spread_job, {"train.dtype=fp32", "distributed.pp=2", "checkpoint.interval=2",
                                            "model.tie_word_embeddings=" + tied, "train.steps=6"});
    const JobResult whole = run_small_job(text, folder.path() / "whole", with(job, spread));
    REQUIRE(whole.exit_code == 0);
    const auto resumed = [&](const Overrides& layout) {
      const auto run_dir = folder.path() / "resumed";
      std::filesystem::remove_all(run_dir);
      std::filesystem::copy(folder.path() / "whole", run_dir, std::filesystem::copy_options::recursive);
      std::filesystem::remove_all(run_dir / "checkpoints/step_6");
      std::ofstream(run_dir / "checkpoints/latest") << "step_4\n";
      return run_small_job(text, run_dir, with(job, layout, Overrides{"checkpoint.resume=auto"}));
    };
    const JobResult same = resumed(with(spread, {"distributed.pp_schedule=zb_h1"}));
    CHECK(same.metrics == whole.metrics);
    CHECK(same.checksums == whole.checksums);
    check_near(resumed({}), whole, apart_fp32);
    check_near(resumed({"distributed.pp=1"}), whole, apart_fp32);
    check_near(resumed(with(spread, {"distributed.pp=4"})), whole, apart_fp32);
  }
}

TEST_CASE("the order of a spread head is kept beside the run, which goes on from it") {
  const TemporaryFolder folder;
  const Overrides job =
      with(spread_job, spread, Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv"});
  const auto run_dir = folder.path() / "run";
  const JobResult first = run_small_job(small_job_text(), run_dir, job);
  const std::string order = content(run_dir / "schedule.csv");
  CHECK(order.find("0S0") != std::string::npos);
  const std::string saved = content(run_dir / "resolved.toml");
  CHECK(saved.find("schedule.csv") != std::string::npos);
  const JobResult again =
      run(with(job, Overrides{"distributed.pp_schedule=" + (run_dir / "schedule.csv").string()}));
  CHECK(again.metrics == first.metrics);
  CHECK(again.checksums == first.checksums);
  const Overrides whole = {"distributed.pp_head=last"};
  const JobResult named = run(with(job, whole));
  const JobResult same =
      run(with(job, whole, Overrides{"distributed.pp_schedule=" + (run_dir / "schedule.csv").string()}));
  CHECK(same.metrics == named.metrics);
  CHECK(same.checksums == named.checksums);
}

TEST_CASE("a spread head gives the same bits with post-validation, also where steps are taken back") {
  for (const auto& [ranks, schedule] :
       {std::pair(2, "zbv"), std::pair(2, "auto"), std::pair(3, "zb_h2"), std::pair(3, "1f1b")}) {
    const Overrides job =
        with(spread_job, spread,
             Overrides{fmt::format("distributed.pp={}", ranks), "train.steps=9",
                       fmt::format("distributed.pp_schedule={}", schedule), "train.grad_clip=0"});
    std::vector<double> norms;
    for (const std::string& line : run(job).metrics) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains("grad_norm")) norms.push_back(record.at("grad_norm"));
    }
    std::ranges::sort(norms);
    for (const double clip : {0.0, norms[norms.size() / 2]}) {
      CAPTURE(ranks, schedule, clip);
      const Overrides clipped = with(job, {fmt::format("train.grad_clip={}", clip)});
      const TemporaryFolder folder;
      const JobResult barrier = run_small_job(small_job_text(), folder.path() / "barrier", clipped),
                      validated = run_small_job(small_job_text(), folder.path() / "validated",
                                                with(clipped, {"optimizer.post_validation=true"}));
      CHECK(validated.metrics == barrier.metrics);
      // The embedding is whole with post-validation, and sharded with the barrier.
      CHECK(checkpoint_elements(folder.path() / "validated") ==
            checkpoint_elements(folder.path() / "barrier"));
    }
  }
}

// Sizes that leave no gaps between parameters.
TEST_CASE("ranks that share out embedding and head hold what is predicted") {
  for (const auto& [schedule, dtype] : {std::pair("zbv", "bf16"), std::pair("1f1b", "fp32")}) {
    const TemporaryFolder folder;
    const pptrain::app::Plan plan = small_plan(
        small_job_text(), folder.path(),
        with(spread_job, spread,
             Overrides{"distributed.pp=4", "model.hidden_size=64", "model.intermediate_size=128",
                       "model.vocab_size=1024", fmt::format("distributed.pp_schedule={}", schedule),
                       fmt::format("train.dtype={}", dtype)}));
    const pptrain::app::Prediction predicted =
        pptrain::app::predict(plan, {.device = pptrain::app::find_device("cpu")});
    std::mutex mutex;  // Catch's assertions are not for several threads at once
    pptrain::app::run_ranks(plan, [&](pptrain::app::RunContext& context) {
      const pptrain::app::RankModel model(context);
      int64_t weights = 0, gradients = 0, states = 0;
      const auto held = [](const at::Tensor& tensor) {
        return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
      };
      for (const auto& own : model.stages()) {
        for (const pptrain::nn::Buffer* buffer : own.stage->parameters().buffers()) {
          weights += held(buffer->master) + held(buffer->compute);
          if (!buffer->whole_compute.is_alias_of(buffer->rounded())) weights += held(buffer->whole_compute);
          gradients += held(buffer->whole_grad);
          if (!buffer->grad.is_alias_of(buffer->whole_grad)) gradients += held(buffer->grad);
        }
        for (const pptrain::optim::StateTensor& state : own.optimizer->state())
          states += static_cast<int64_t>(state.tensor.nbytes());
      }
      const auto rank = static_cast<size_t>(context.mesh.rank());
      const std::lock_guard lock(mutex);
      CAPTURE(schedule, dtype, rank);
      CHECK(weights == predicted.bytes[rank].weights);
      CHECK(gradients == predicted.bytes[rank].gradients);
      CHECK(states == predicted.bytes[rank].optimizer);
      return 0;
    });
  }
}

TEST_CASE("auto takes a schedule for a spread head, and what it does not go with is refused") {
  const Overrides job = with(spread_job, spread, Overrides{"distributed.pp=2"});
  const pptrain::app::Plan plan =
      small_plan(small_job_text(), "unused", with(job, Overrides{"distributed.pp_schedule=auto"}));
  CHECK(plan.schedule.spread_head);
  for (const char* refused : {"distributed.pp=1", "model.vocab_size=1"}) {
    CAPTURE(refused);
    CHECK_THROWS_WITH(small_plan(small_job_text(), "unused", with(job, Overrides{refused})),
                      Catch::Contains("pp_head"));
  }
}

// Microbatches in sequence slices give the same bits under every schedule and on every layout with the same
// slices. They agree with whole microbatches up to rounding.
#include <algorithm>
#include <cmath>

#include "app/forecast/costs.h"
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/close_runs.h"
#include "test/support/catch.h"

using namespace pptrain::test;

namespace {

const Overrides sliced_job =
    with(smooth_steps,
         {"model.num_hidden_layers=8", "train.steps=3", "train.grad_accum_steps=4", "train.seq_len=48",
          "eval.interval=3", "eval.batches=2", "data.val_fraction=0.1", "distributed.pp_sequence_slices=3"});
const Overrides whole = {"distributed.pp_sequence_slices=1"};
const Overrides balanced = {"model.arch=qwen3_moe",           "model.num_experts=4",
                            "model.num_experts_per_tok=2",    "model.moe_intermediate_size=16",
                            "model.router_aux_loss_coef=0.1", "model.router_z_loss_coef=0.01"};

}  // namespace

TEST_CASE("sequence slices give the same bits under every schedule, and whole microbatches' losses") {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const Overrides job = with(sliced_job, {"train.dtype=" + dtype, "metrics.microbatch_losses=true"});
    const JobResult one = run(job);
    const JobResult unsliced = run(with(job, whole));
    CHECK(one.metrics != unsliced.metrics);  // the order of sums
    check_near(one, unsliced, dtype == "fp32" ? apart_fp32 : apart_bf16);
    for (const std::string& name : pptrain::schedule::training_schedule_names()) {
      for (const int ranks : {2, 4}) {
        CAPTURE(dtype, name, ranks);
        check_equal(run(with(job, {"distributed.pp_schedule=" + name, fmt::format("distributed.pp={}", ranks),
                                   "train.recompute=" + std::string(ranks == 2 ? "full:2/none:1" : "full")})),
                    one);
      }
    }
  }
}

TEST_CASE("sequence slices keep their bits with every axis that does so") {
  const Overrides job =
      with(sliced_job, {"train.dtype=fp32", "distributed.pp=2", "distributed.pp_schedule=zbv"});
  for (const Overrides& kind : std::vector<Overrides>{
           {},
           {"data.lengths=exact", "data.document_end=10"},
           {"data.document_end=10"},
           {"model.tie_word_embeddings=true"},
           {"lora.rank=2"},
           {"model.arch=gemma2", "model.head_dim=8", "model.tie_word_embeddings=true"},
           with(balanced, {"model.router_aux_loss_coef=0", "model.router_z_loss_coef=0"})}) {
    CAPTURE(kind);
    const JobResult alone = run(with(
        with(job, kind), {"distributed.pp=1", "distributed.pp_schedule=gpipe", "train.grad_accum_steps=4"}));
    check_near(alone, run(with(with(job, kind), whole, Overrides{"train.grad_accum_steps=4"})), apart_fp32);
    for (const Overrides& layout :
         std::vector<Overrides>{{"distributed.dp_replicate=2"},
                                {"distributed.dp_shard=2", "distributed.reshard_after_forward=true"},
                                {"distributed.dp_shard=2", "distributed.reduce_gradients=microbatch"}}) {
      CAPTURE(layout);
      const JobResult two = run(with(with(job, kind), layout, Overrides{"train.grad_accum_steps=2"}));
      check_near(two, alone, apart_fp32);
    }
    check_near(run(with(with(job, kind), {"distributed.tp=2", "train.grad_accum_steps=4"})), alone,
               apart_fp32);
  }
}

TEST_CASE("routers' losses are of whole microbatches, to the bit under every schedule of slices") {
  const Overrides job = with(with(sliced_job, balanced), {"train.dtype=fp32"});
  const JobResult one = run(job), uncut = run(with(job, whole));
  check_near(one, uncut, apart_fp32);
  // These losses act: without them the weights differ.
  const JobResult without = run(with(job, {"model.router_aux_loss_coef=0", "model.router_z_loss_coef=0"}));
  CHECK_FALSE(without.checksums == one.checksums);
  for (const std::string& name : pptrain::schedule::training_schedule_names()) {
    for (const std::string recompute : {"full", "none", "full:2/none:1"}) {
      CAPTURE(name, recompute);
      check_equal(run(with(job, {"distributed.pp_schedule=" + name, "distributed.pp=2",
                                 "train.recompute=" + recompute})),
                  one);
    }
  }
  check_near(run(with(job, {"distributed.dp_shard=2", "distributed.ep=2", "train.grad_accum_steps=2"})),
             run(with(job, {"distributed.dp_shard=2", "distributed.ep=2", "train.grad_accum_steps=2",
                            "distributed.pp_sequence_slices=1"})),
             apart_fp32);
}

TEST_CASE("sequence slices go with a spread head, under every schedule with the same bits") {
  const Overrides job =
      with(sliced_job, {"train.dtype=fp32", "distributed.pp=2", "distributed.pp_head=spread",
                        "metrics.microbatch_losses=true", "train.label_smoothing=0.1"});
  const JobResult reference = run(job);
  check_near(reference, run(with(job, {"distributed.pp_head=last"})), apart_fp32);
  check_near(reference, run(with(job, whole)), apart_fp32);
  for (const std::string& name : pptrain::schedule::training_schedule_names()) {
    CAPTURE(name);
    check_equal(run(with(job, {"distributed.pp_schedule=" + name})), reference);
  }
  const TemporaryFolder folder;
  const auto barrier = folder.path() / "barrier", validated = folder.path() / "validated";
  const Overrides no_parts = with(job, {"metrics.microbatch_losses=false"});
  CHECK(run_small_job(small_job_text(), barrier, no_parts).metrics ==
        run_small_job(small_job_text(), validated,
                      with(no_parts, {"distributed.pp_schedule=zbv", "optimizer.post_validation=true"}))
            .metrics);
  // The embedding is whole in one checkpoint and sharded in the other.
  CHECK(checkpoint_elements(barrier) == checkpoint_elements(validated));
}

TEST_CASE("a searched order of sequence slices trains with the same bits, and goes on from its folder") {
  const TemporaryFolder folder;
  const Overrides job = with(sliced_job, {"train.dtype=fp32", "train.steps=4", "checkpoint.interval=2"});
  const JobResult one = run(job);
  for (const std::string head : {"last", "spread"}) {
    CAPTURE(head);
    const Overrides searched = with(job, {"distributed.pp=2", "distributed.pp_schedule=search",
                                          "distributed.pp_stages_per_rank=2", "distributed.pp_head=" + head});
    const JobResult all = run_small_job(small_job_text(), folder.path() / head, searched);
    REQUIRE(all.exit_code == 0);
    const JobResult named = run(with(searched, {"distributed.pp_schedule=zbv"}));
    check_equal(all, named);
    if (head == "last") check_equal(all, one);
    const auto begun = folder.path() / head / "checkpoints/step_2";
    const JobResult resumed =
        run_small_job(small_job_text(), folder.path() / (head + "_resumed"),
                      with(searched, {fmt::format("checkpoint.resume=\"{}\"", begun.string())}));
    REQUIRE(resumed.exit_code == 0);
    CHECK(resumed.checksums == all.checksums);
  }
}

TEST_CASE("documents are balanced by the schedule's end in slices and with a spread head") {
  const Overrides job = with(sliced_job, {"train.dtype=fp32", "distributed.pp=2", "data.lengths=exact",
                                          "data.document_end=10", "distributed.dp_replicate=2"});
  for (const Overrides& kind :
       std::vector<Overrides>{{},
                              {"distributed.pp_head=spread"},
                              {"distributed.pp_head=spread", "distributed.pp_sequence_slices=1"}}) {
    CAPTURE(kind);
    const Overrides by_cost = with(job, kind), by_schedule = with(by_cost, {"data.balance=schedule"});
    check_near(run(by_schedule), run(by_cost), apart_fp32);
  }
}

TEST_CASE("sequence slices go with post-validation, also where steps are taken back") {
  const Overrides job = with(sliced_job, {"train.dtype=fp32", "train.grad_clip=0.3", "train.steps=6"});
  const JobResult expected = run(job);
  CHECK(steps_over(expected, 0.3) > 0);
  for (const std::string name : {"1f1b", "zbv", "zb_h1"})
    check_equal(run(with(job, {"distributed.pp=2", "distributed.pp_schedule=" + name,
                               "optimizer.post_validation=true"})),
                expected);
}

TEST_CASE("a run with sequence slices goes on from its checkpoints on another layout") {
  const TemporaryFolder folder;
  const Overrides job = with(sliced_job, {"train.dtype=fp32", "checkpoint.interval=2", "train.steps=6"});
  const JobResult all =
      run_small_job(small_job_text(), folder.path() / "all", with(job, {"distributed.pp=2"}));
  REQUIRE(all.exit_code == 0);
  const auto begun = folder.path() / "all/checkpoints/step_4";
  const JobResult resumed =
      run_small_job(small_job_text(), folder.path() / "resumed",
                    with(job, {"distributed.pp=4", "distributed.pp_schedule=zb_h1",
                               fmt::format("checkpoint.resume=\"{}\"", begun.string())}));
  REQUIRE(resumed.exit_code == 0);
  CHECK(resumed.checksums == all.checksums);
}

TEST_CASE("this machine's costs are of whole microbatches, of which slices are a part") {
  const auto scale = [](int slices) {
    const pptrain::app::Plan plan =
        small_plan(small_job_text(), "/nowhere",
                   with(sliced_job, {fmt::format("distributed.pp_sequence_slices={}", slices)}));
    return pptrain::app::measure_machine(plan).calibration.backward_weight;
  };
  const double whole_scale = std::min(scale(1), scale(1)), slices_scale = std::min(scale(16), scale(16));
  CHECK(slices_scale < 5 * whole_scale);
}

TEST_CASE("auto takes sequence slices where they pay, and what they do not go with is refused") {
  const auto plan = [](const Overrides& overrides) {
    return small_plan(small_job_text(), "/nowhere", with(sliced_job, overrides));
  };
  const Overrides automatic = {"distributed.pp=4",
                               "distributed.pp_schedule=auto",
                               "distributed.pp_sequence_slices=0",
                               "train.seq_len=65536",
                               "train.grad_accum_steps=2",
                               "train.micro_batch_size=1",
                               "distributed.pp_costs=h100",
                               "model.hidden_size=1024",
                               "model.head_dim=128",
                               "model.intermediate_size=4096",
                               "run.device=cuda",
                               "train.dtype=bf16"};
  const pptrain::app::Plan few = plan(automatic);
  CHECK(few.job.distributed.pp_sequence_slices > 1);
  CHECK(few.compute.microbatches == 2 * few.job.distributed.pp_sequence_slices);
  // A searched order of them is faster.
  const pptrain::app::Plan searched = plan(with(automatic, {"distributed.pp_schedule=search"}));
  CHECK(searched.order == pptrain::app::Order::searched);
  CHECK(searched.job.distributed.pp_sequence_slices > 1);
  CHECK(searched.named_ratio > 1);
  // A short sequence is not sliced.
  CHECK(plan(with(automatic, {"train.seq_len=64", "train.grad_accum_steps=64"}))
            .job.distributed.pp_sequence_slices == 1);
  for (const auto& [overrides, words] : std::vector<std::pair<Overrides, std::string>>{
           {{"distributed.pp_sequence_slices=0"}, "pp_sequence_slices = 0 is chosen with the schedule"},
           {{"distributed.cp=2"}, "cuts lists that cp ranks share out already"},
           {{"distributed.pp_sequence_slices=200"}, "is too many for the 96 tokens of a microbatch"}}) {
    CAPTURE(overrides);
    CHECK_THROWS_WITH(plan(overrides), contains_text(words));
  }
}

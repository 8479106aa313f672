// Jobs with train.fp8: equal bits wherever bf16 has them, and nearly equal figures on the other axes. Shards
// are in sharding_test.cpp, families in families_test.cpp, pairs of axes and options in mesh_grid_test.cpp.
#include <nlohmann/json.hpp>

#include "parallel/schedule/generators/generators.h"
#include "test/app/close_runs.h"
#include "test/support/catch.h"

using pptrain::UsageError;
using namespace pptrain::test;

namespace {

const Overrides fp8_job =
    with(smooth_steps, {"train.dtype=bf16", "train.fp8=rowwise", "train.steps=3", "train.grad_accum_steps=6",
                        "eval.interval=3", "eval.batches=2"});

// Sums in another order change a bfloat16, and now and then the E4M3 that it is rounded to: 2^-4 of it.
constexpr Apart apart_fp8 = {.losses = 4 * apart_bf16.losses, .norms = 4 * apart_bf16.norms};

double last_loss(const JobResult& result) {
  double loss = 0;
  for (const std::string& line : result.metrics) loss = nlohmann::json::parse(line).value("loss", loss);
  return loss;
}

}  // namespace

TEST_CASE("FP8 acts, and trains nearly as bf16 does") {
  const Overrides job = with(fp8_job, {"train.steps=20"});
  const JobResult fp8 = run(job), bf16 = run(with(job, {"train.fp8=off"}));
  CHECK(fp8.metrics != bf16.metrics);
  CHECK(relative_error(last_loss(fp8), last_loss(bf16)) < 0.02);
}

TEST_CASE("FP8 has the bits of one rank under every schedule") {
  const JobResult reference = run(fp8_job);
  for (const std::string& name : pptrain::schedule::training_schedule_names()) {
    CAPTURE(name);
    check_equal(reference, run(with(fp8_job, {"distributed.pp=2", "distributed.pp_schedule=" + name})));
  }
}

TEST_CASE("FP8 keeps its bits with all that keeps those of bf16") {
  const std::vector<Overrides> jobs = {{},
                                       {"optimizer.post_validation=true", "train.grad_clip=0.05"},
                                       {"model.tie_word_embeddings=true", "optimizer.name=muon"},
                                       {"lora.rank=2"},
                                       {"data.lengths=exact", "data.document_end=10"}};
  for (const Overrides& more : jobs) {
    CAPTURE(more);
    const Overrides job = with(fp8_job, more);
    check_equal(run(job), run(with(job, {"distributed.pp=2", "distributed.pp_schedule=zbv"})));
  }
}

TEST_CASE("FP8 with weight gradients acts, and keeps its bits likewise") {
  const Overrides all = with(fp8_job, {"train.fp8=rowwise_all"});
  CHECK(run(all).metrics != run(fp8_job).metrics);
  // Gradients of half the size would be 1.5 % away.
  CHECK(relative_error(last_loss(run(all)), last_loss(run(with(fp8_job, {"train.fp8=off"})))) < 0.003);
  const std::vector<Overrides> jobs = {{}, {"lora.rank=2"}, {"distributed.pp_sequence_slices=2"}};
  for (const Overrides& more : jobs) {
    CAPTURE(more);
    const Overrides job = with(all, more);
    const JobResult reference = run(with(job, {"distributed.pp=2"}));
    check_equal(reference, run(with(job, {"distributed.pp=2", "distributed.pp_schedule=zbv"})));
    check_equal(reference, run(with(job, {"distributed.pp=4", "distributed.pp_schedule=zb_h1"})));
  }
  const TemporaryFolder folder;
  run_small_job(small_job_text(), folder.path() / "replicas", with(all, {"distributed.dp_replicate=2"}));
  run_small_job(small_job_text(), folder.path() / "shards",
                with(all, {"distributed.dp_shard=2", "distributed.pp=2"}));
  check_equal_elements(folder.path() / "replicas", folder.path() / "shards");
}

TEST_CASE("FP8 has the same bits whatever is recomputed") {
  const JobResult reference = run(fp8_job);
  for (const std::string level : {"cheap", "selective", "full"})
    check_equal(reference, run(with(fp8_job, {"train.recompute=" + level, "distributed.pp=2"})));
}

TEST_CASE("FP8 in slices and with a spread head has the bits of every schedule of these") {
  for (const Overrides& way :
       std::vector<Overrides>{{"distributed.pp_sequence_slices=2"}, {"distributed.pp_head=spread"}}) {
    const Overrides job = with(fp8_job, {"distributed.pp=2"});
    CAPTURE(way);
    const JobResult reference = run(with(job, way));
    check_near(reference, run(job), apart_fp8);
    for (const std::string name : {"gpipe", "interleaved_1f1b", "zb_h1"})
      check_equal(reference, run(with(with(job, way), {"distributed.pp_schedule=" + name})));
  }
}

TEST_CASE("FP8 on tensor- and context-parallel ranks trains nearly as on one") {
  const Overrides job =
      with(fp8_job, {"model.intermediate_size=64", "model.hidden_size=64", "model.head_dim=16"});
  const JobResult alone = run(job);
  for (const Overrides& axis :
       std::vector<Overrides>{{"distributed.tp=2"},
                              {"distributed.cp=2"},
                              {"distributed.tp=2", "distributed.dp_shard=1", "distributed.pp=2"}}) {
    CAPTURE(axis);
    check_near(run(with(job, axis)), alone, apart_fp8);
  }
}

TEST_CASE("a run in FP8 goes on from its checkpoint on another layout, bit for bit") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides job = with(fp8_job, {"train.steps=4", "checkpoint.interval=2", "checkpoint.keep_last_n=0"});
  const JobResult whole = run_small_job(text, folder.path() / "whole", job);
  const auto run_dir = folder.path() / "resumed";
  std::filesystem::copy(folder.path() / "whole", run_dir, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(run_dir / "checkpoints/step_4");
  std::ofstream(run_dir / "checkpoints/latest") << "step_2\n";
  const JobResult resumed =
      run_small_job(text, run_dir, with(job, {"checkpoint.resume=auto", "distributed.pp=3"}));
  REQUIRE(resumed.exit_code == 0);
  CHECK(resumed.checksums == whole.checksums);
}

TEST_CASE("what FP8 cannot do is refused by name") {
  const auto fault = [](const Overrides& more) {
    try {
      small_plan(small_job_text(), "none", with(fp8_job, more));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(fault({}) == "");
  CHECK_THAT(fault({"train.dtype=fp32"}), contains_text("train.fp8") && contains_text("train.dtype"));
  CHECK_THAT(fault({"model.intermediate_size=40"}), contains_text("layers.0.mlp.gate.weight is 80 x 32") ||
                                                        contains_text("layers.0.mlp.down.weight"));
  CHECK_THAT(fault({"distributed.tp=2"}),
             contains_text("multiples of 16") && contains_text("distributed.tp"));
  CHECK_THAT(fault({"train.fp8=rowwise_all", "run.device=cuda"}),
             contains_text("train.fp8") && contains_text("not built for GPUs"));
  CHECK_THAT(fault({"train.fp8=delayed"}), contains_text("Use rowwise"));
  CHECK_THAT(fault({"train.dtype=fp8"}), contains_text("train.fp8 = \"rowwise\""));
}

// Jobs with Muon, Lion and groups of parameters: the same bits on every layout, with post-validation, and
// when resumed.
#include <filesystem>
#include <string>
#include <vector>

#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::check_equal_elements;
using pptrain::test::contains_text;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

// An optimizer, the state that it must have in checkpoints, and its options.
struct Kind {
  std::string name, state;
  Overrides options = {};
};
const std::vector<Kind> kinds = {
    {"muon", "muon.momentum"},
    {"lion", "lion.exp_avg"},
    {"adamw", "ema", {"optimizer.state_dtype=bf16", "optimizer.ema_decay=0.99"}},
};

Overrides base_of(const Kind& kind, const std::string& dtype) {
  return with({"optimizer.name=" + kind.name, "train.dtype=" + dtype, "train.grad_accum_steps=4",
               "model.tie_word_embeddings=true",
               "optimizer.groups=[{match='*norm*', lr_scale=0.5}, {match='embedding', weight_decay=0.01}]"},
              kind.options);
}

Overrides layout(const std::string& schedule, int pp) {
  return {"distributed.pp_schedule=" + schedule, fmt::format("distributed.pp={}", pp)};
}

}  // namespace

TEST_CASE("optimizers give the same bits on every pp and schedule, with post-validation or without") {
  const std::string text = small_job_text();
  for (const Kind& kind : kinds) {
    for (const std::string dtype : {"fp32", "bf16"}) {
      const TemporaryFolder folder;
      const Overrides base = base_of(kind, dtype);
      const JobResult reference = run_small_job(text, folder.path() / "reference", base);
      REQUIRE(reference.checksums.contains(kind.state + "/layers.0.attn.q.weight"));
      CHECK(reference.checksums.contains("muon.momentum/embed.weight") == false);
      int run = 0;
      for (const Overrides& other :
           std::vector<Overrides>{layout("1f1b", 2), layout("zbv", 2), layout("interleaved_1f1b", 2),
                                  with(layout("zb_h2", 2), {"optimizer.post_validation=true"}),
                                  with(layout("zbv", 2), {"optimizer.post_validation=true"})}) {
        CAPTURE(kind.name, dtype, other);
        check_equal(reference, run_small_job(text, folder.path() / std::to_string(run++), with(base, other)));
      }
    }
  }
}

TEST_CASE("with replicas, each of Muon's matrices is made orthogonal on one of them, with the same bits") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides base = with(base_of(kinds.front(), "fp32"), {"distributed.dp_replicate=2"});
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  check_equal(reference, run_small_job(text, folder.path() / "1f1b", with(base, layout("1f1b", 2))));
  check_equal(reference,
              run_small_job(text, folder.path() / "post",
                            with(base, layout("zbv", 2), Overrides{"optimizer.post_validation=true"})));
}

TEST_CASE("a run resumes bit for bit on another layout, but not with another optimizer or type of moments") {
  const std::string text = small_job_text();
  for (const Kind& kind : kinds) {
    const TemporaryFolder folder;
    const Overrides base =
        with(base_of(kind, "bf16"), {"train.steps=4", "checkpoint.interval=2", "checkpoint.keep_last_n=0"});
    const JobResult whole = run_small_job(text, folder.path() / "whole", with(base, layout("1f1b", 2)));
    std::filesystem::remove_all(folder.path() / "whole/checkpoints/step_4");
    std::ofstream(folder.path() / "whole/checkpoints/latest") << "step_2\n";
    const auto resume = [&](const std::string& name, const Overrides& other) {
      std::filesystem::copy(folder.path() / "whole", folder.path() / name,
                            std::filesystem::copy_options::recursive);
      return run_small_job(text, folder.path() / name,
                           with(base, Overrides{"checkpoint.resume=auto"}, other));
    };
    check_equal(whole, resume("alone", layout("gpipe", 1)));
    check_equal(whole, resume("v", layout("zbv", 2)));
    const Overrides other =
        kind.name == "adamw" ? Overrides{"optimizer.state_dtype=fp32"} : Overrides{"optimizer.name=adamw"};
    CHECK_THROWS_WITH(resume("adamw", other), contains_text("another model or optimizer"));
  }
}

TEST_CASE("sharded moments in bfloat16 and a sharded average have the bits of replicas") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, const Overrides& layout) {
    return run_small_job(text, folder.path() / name, with(base_of(kinds.back(), "bf16"), layout));
  };
  run("replicas", {"distributed.dp_replicate=2"});
  run("shards", {"distributed.dp_shard=2"});
  run("stages", {"distributed.dp_shard=2", "distributed.pp=2"});
  for (const char* other : {"shards", "stages"})
    check_equal_elements(folder.path() / "replicas", folder.path() / other, at::kBFloat16);
  check_equal(
      run("columns", {"distributed.tp=2"}),
      run("sharded_columns", {"distributed.tp=2", "distributed.pp=2", "distributed.pp_schedule=zbv"}));
}

// The average follows the weights, so it lies between its start and them.
TEST_CASE("an average of weights may begin in the middle of a run, and ends with its option") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run = [&](const Overrides& overrides) {
    return run_small_job(text, folder.path() / "run", with({"checkpoint.interval=2"}, overrides));
  };
  const std::string average = "ema/layers.0.attn.q.weight", weights = "model/layers.0.attn.q.weight";
  const JobResult before = run({"train.steps=2"});
  CHECK_FALSE(before.checksums.contains(average));
  const JobResult begun =
      run({"train.steps=4", "checkpoint.resume=auto", "optimizer.ema_decay=0.9", "optimizer.lr=0"});
  REQUIRE(begun.checksums.contains(average));
  CHECK(begun.checksums.at(average) == begun.checksums.at(weights));
  const JobResult moved =
      run({"train.steps=6", "checkpoint.resume=auto", "optimizer.ema_decay=0.9", "optimizer.lr=0.01"});
  CHECK(moved.checksums.at(average) != moved.checksums.at(weights));
  const JobResult ended = run({"train.steps=8", "checkpoint.resume=auto"});
  CHECK_FALSE(ended.checksums.contains(average));
}

TEST_CASE("a group that no parameter of the model is in is refused at its place") {
  const TemporaryFolder folder;
  const auto plan = [&](const std::string& groups) {
    pptrain::test::small_plan(small_job_text() + groups, folder.path(), {});
  };
  CHECK_THROWS_WITH(
      plan("[[optimizer.groups]]\nmatch = '*norm*'\n[[optimizer.groups]]\nmatch = 'layers.4.*'\n"),
      contains_text("optimizer.groups[1].match: \"layers.4.*\" matches no parameter of the model"));
  CHECK_NOTHROW(plan("[[optimizer.groups]]\nmatch = 'layers.3.*'\n"));
}

TEST_CASE("the loads that move biases of experts are no part of the gradient's norm") {
  const TemporaryFolder folder;
  const auto norm = [&](const std::string& rate) {
    const JobResult result =
        run_small_job(small_job_text(), folder.path() / "run",
                      {"train.steps=1", "eval.interval=0", "data.val_fraction=0", "model.arch=qwen3_moe",
                       "model.num_experts=4", "model.num_experts_per_tok=2", "model.moe_intermediate_size=16",
                       "model.router_bias_update_rate=" + rate});
    return nlohmann::json::parse(result.metrics.at(0)).at("grad_norm").get<double>();
  };
  CHECK(norm("0.01") == Approx(norm("0")));
}

// Every family gives the bits of one rank on pipelines and shards; with tp, cp and ep nearly those, or is
// refused.
#include <cmath>

#include "core/base/error.h"
#include "models/registry.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using test::Overrides;
using test::with;
using M = config::ModelSection;

namespace {

const Overrides tiny_family = {"model.hidden_size=16",
                               "model.intermediate_size=24",
                               "model.num_attention_heads=4",
                               "model.initializer_range=0.2",
                               "train.seq_len=16",
                               "train.micro_batch_size=1",
                               "train.grad_accum_steps=4",
                               "train.steps=2",
                               "eval.interval=0",
                               "optimizer.eps=1e-3"};

// All that an architecture may have, none of it at its default.
Overrides settings_of(const models::Architecture& family) {
  Overrides result = with(tiny_family, {fmt::format("model.arch={}", family.name)});
  const bool latent = family.decoder.latent_attention;
  const auto add = [&](bool has, std::initializer_list<std::string> settings) {
    if (has) result = with(result, settings);
  };
  add(family.sparse, {"model.num_experts=4", "model.num_experts_per_tok=2"});
  add(family.sparse && !family.experts_of_mlp_width,
      {"model.moe_intermediate_size=16", fmt::format("model.mlp_only_layers=[{}]", latent ? 0 : 1)});
  add(!family.plain_heads && !latent, {"model.num_key_value_heads=2", "model.head_dim=8"});
  add(family.has_attention_bias, {"model.attention_bias=true"});
  add(family.has_mlp_bias, {"model.mlp_bias=true"});
  add(family.has_window, {"model.sliding_window=5"});
  add(family.has_partial_rotation, {"model.partial_rotary_factor=0.5"});
  add(family.has_shared_expert(), {"model.shared_expert_intermediate_size=32"});
  add(latent, {"model.kv_lora_rank=6", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=2",
               "model.v_head_dim=3", "model.n_group=2", "model.topk_group=1",
               "model.routed_scaling_factor=1.5", "model.num_experts_per_tok=1"});
  add(family.decoder.sigmoid_router, {"model.q_lora_rank=8", "model.router_bias_update_rate=0.01"});
  add(family.takes(&M::attn_logit_softcapping), {"model.attn_logit_softcapping=2"});
  add(family.takes(&M::final_logit_softcapping), {"model.final_logit_softcapping=3"});
  add(family.takes(&M::residual_multiplier),
      {"model.embedding_multiplier=3", "model.attention_multiplier=0.4", "model.residual_multiplier=0.5",
       "model.logits_scaling=1.5"});
  return result;
}

struct FamilyRun {
  test::JobResult result;
  std::map<std::string, std::string> elements;
};

// Every head has keys, for families that say nothing else.
std::string job_text() {
  std::string text = test::small_job_text();
  const std::string heads = "num_key_value_heads = 2\nhead_dim = 8\n";
  return text.erase(text.find(heads), heads.size());
}

class Family {
 public:
  explicit Family(const models::Architecture& family) : settings_(settings_of(family)) {}

  FamilyRun run(const Overrides& layout) const {
    FamilyRun made{.result = test::run_small_job(job_text(), folder_.path() / "run", with(settings_, layout)),
                   .elements = test::checkpoint_elements(folder_.path() / "run")};
    REQUIRE(made.result.exit_code == 0);
    REQUIRE(made.result.metrics.size() == 3);  // and what validation says
    return made;
  }

 private:
  Overrides settings_;
  test::TemporaryFolder folder_;
};

void check_equal(const FamilyRun& made, const FamilyRun& expected) {
  REQUIRE(expected.elements.size() > 100);
  CHECK(made.result.metrics == expected.result.metrics);
  CHECK(made.elements == expected.elements);
}

void check_close(const FamilyRun& made, const FamilyRun& expected) {
  for (size_t step = 0; step < 2; ++step) {
    const auto ours = nlohmann::json::parse(made.result.metrics[step]),
               theirs = nlohmann::json::parse(expected.result.metrics[step]);
    for (const char* key : {"loss", "grad_norm"})
      CHECK(ours.at(key).get<double>() == Approx(theirs.at(key).get<double>()).epsilon(2e-5));
  }
}

}  // namespace

TEST_CASE("every family gives the bits of one rank under any pipeline and over shards", "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const FamilyRun one = family.run({});
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zb_h1"}), one);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zbv", "train.recompute=full"}), one);
    const FamilyRun replicas = family.run({"distributed.dp_replicate=2"});
    check_equal(family.run({"distributed.dp_shard=2", "distributed.reshard_after_forward=true"}), replicas);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b",
                            "distributed.dp_shard=2"}),
                replicas);
  }
}

TEST_CASE("every family trains alike on ranks that share out heads, rows or experts, or is refused",
          "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const FamilyRun one = family.run({});
    if (architecture->decoder.qk_norm == nn::QkNorm::whole) {
      CHECK_THROWS_AS(family.run({"distributed.tp=2"}), UsageError);
    } else {
      check_close(family.run({"distributed.tp=2", "distributed.pp=2", "distributed.pp_schedule=zbv"}), one);
    }
    for (const char* kind : {"ring", "ulysses"})
      check_close(family.run({"distributed.cp=2", fmt::format("distributed.cp_kind={}", kind)}), one);
    if (architecture->sparse) check_close(family.run({"distributed.cp=2", "distributed.ep=2"}), one);
  }
}

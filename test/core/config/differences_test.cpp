// The differences of two jobs, and which of them a resumed run may have.
#include "core/config/differences.h"

#include <map>
#include <set>

#include "core/config/options.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"

using namespace pptrain::config;
using namespace pptrain::config::test;

TEST_CASE("a job equals itself as it is saved") {
  JobConfig job;
  job.data.path = {"tokens \"1\".bin"};
  job.train.seq_len = 17;
  job.optimizer.groups = {{.match = "*.norm*", .lr_scale = 2}};
  CHECK(differences(job, read_saved_job(to_toml(job), "saved")).empty());
}

TEST_CASE("differences come with both values") {
  JobConfig saved, now;
  now.optimizer.lr = 1e-3;
  now.distributed.reshard_after_forward = true;
  now.optimizer.groups = {{.match = "*.norm*", .lr_scale = 2, .weight_decay = 0.5}};
  const std::vector<Difference> found = differences(saved, now);
  REQUIRE(found.size() == 3);
  CHECK(describe(found[0]) == "distributed.reshard_after_forward was not set, is true");
  CHECK(found[0].effect == Effect::layout);
  CHECK(describe(found[1]) == "optimizer.lr was 0.0003, is 0.001");
  CHECK(found[1].effect == Effect::course);
  CHECK(describe(found[2]) ==
        "optimizer.groups was [], is [{match = \"*.norm*\", lr_scale = 2.0, weight_decay = 0.5, frozen = "
        "false}]");
}

TEST_CASE("sources are compared field by field, and decide the data; other numbers of them as a whole") {
  JobConfig saved;
  saved.data.sources.resize(2);
  saved.data.sources[0].path = {"/here"};
  JobConfig now = saved;
  CHECK(differences(saved, now).empty());
  now.data.sources[1].weight = 2;
  now.data.sources[0].path = {"/elsewhere"};
  now.data.sources[0].val_path = {"held out"};
  const std::vector<Difference> found = differences(saved, now);
  REQUIRE(found.size() == 3);
  CHECK(describe(found[0]) == "data.sources[0].path was \"/here\", is \"/elsewhere\"");
  CHECK(found[0].effect == Effect::data);
  CHECK(found[1].effect == Effect::course);
  CHECK(describe(found[2]) == "data.sources[1].weight was 1.0, is 2.0");
  CHECK(found[2].effect == Effect::data);
  now.data.sources.pop_back();
  REQUIRE(differences(saved, now).size() == 1);
  CHECK(differences(saved, now)[0].option == "data.sources");
  CHECK(differences(saved, now)[0].effect == Effect::data);
}

TEST_CASE("a saved job of another version is read as far as it is known") {
  const JobConfig job =
      read_saved_job("[train]\nsteps = 5\nnot_yet_known = 3\ndtype = \"fp8\"\n[sparse]\nwhat = 1\n", "saved");
  CHECK(job.train.steps == 5);
  CHECK(job.train.dtype == JobConfig().train.dtype);
}

// Written out, so that the author of a new or moved option must decide here.
TEST_CASE("which options decide the model and the order of the data") {
  std::map<Effect, std::set<std::string>> by_effect;
  for (const Option& option : options()) by_effect[option.effect].insert(option.name());
  CHECK(by_effect[Effect::data] == std::set<std::string>{"run.seed",
                                                         "train.seq_len",
                                                         "data.path",
                                                         "data.format",
                                                         "data.dtype",
                                                         "data.text_key",
                                                         "data.prompt_key",
                                                         "data.completion_key",
                                                         "data.messages_key",
                                                         "data.tokens_key",
                                                         "data.labels_key",
                                                         "data.chat.template",
                                                         "data.chat.bos",
                                                         "data.chat.system_prefix",
                                                         "data.chat.system_suffix",
                                                         "data.chat.user_prefix",
                                                         "data.chat.user_suffix",
                                                         "data.chat.assistant_prefix",
                                                         "data.chat.assistant_suffix",
                                                         "data.chat.default_system",
                                                         "data.chat.system",
                                                         "data.chat.alternate",
                                                         "data.chat.trim",
                                                         "data.max_document_tokens",
                                                         "data.document_separator",
                                                         "data.add_special",
                                                         "data.document_end",
                                                         "data.packing",
                                                         "data.lengths",
                                                         "data.pad_to_multiple_of",
                                                         "data.shuffle",
                                                         "data.val_fraction"});
  CHECK(by_effect[Effect::model] ==
        std::set<std::string>{"model.attention_multiplier",
                              "model.attn_logit_softcapping",
                              "model.embedding_multiplier",
                              "model.final_logit_softcapping",
                              "model.layer_types",
                              "model.logits_scaling",
                              "model.no_rope_layers",
                              "model.partial_rotary_factor",
                              "model.query_pre_attn_scalar",
                              "model.residual_multiplier",
                              "model.rope_local_base_freq",
                              "model.rope_scaling.attention_factor",
                              "model.rope_scaling.beta_fast",
                              "model.rope_scaling.beta_slow",
                              "model.rope_scaling.long_factor",
                              "model.rope_scaling.mscale",
                              "model.rope_scaling.mscale_all_dim",
                              "model.rope_scaling.short_factor",
                              "model.rope_scaling.truncate",
                              "model.shared_expert_intermediate_size",
                              "model.sliding_window",
                              "model.swiglu_limit",
                              "model.q_lora_rank",
                              "model.kv_lora_rank",
                              "model.qk_nope_head_dim",
                              "model.qk_rope_head_dim",
                              "model.v_head_dim",
                              "model.n_group",
                              "model.topk_group",
                              "model.routed_scaling_factor",
                              "model.use_parallel_residual",
                              "model.arch",
                              "model.hidden_size",
                              "model.intermediate_size",
                              "model.num_hidden_layers",
                              "model.num_attention_heads",
                              "model.num_key_value_heads",
                              "model.head_dim",
                              "model.vocab_size",
                              "model.rope_theta",
                              "model.rms_norm_eps",
                              "model.tie_word_embeddings",
                              "model.attention_bias",
                              "model.mlp_bias",
                              "model.norm_topk_prob",
                              "model.num_experts",
                              "model.num_experts_per_tok",
                              "model.moe_intermediate_size",
                              "model.decoder_sparse_step",
                              "model.mlp_only_layers",
                              "model.rope_scaling.rope_type",
                              "model.rope_scaling.factor",
                              "model.rope_scaling.low_freq_factor",
                              "model.rope_scaling.high_freq_factor",
                              "model.rope_scaling.original_max_position_embeddings",
                              "optimizer.name",
                              "optimizer.state_dtype",
                              "lora.rank",
                              "lora.alpha",
                              "lora.dropout",
                              "lora.targets"});
  for (const char* name : {"optimizer.lr", "train.steps", "train.dtype", "lr_schedule.warmup_steps"})
    CHECK(by_effect[Effect::course].contains(name));
  for (const char* name : {"distributed.pp", "distributed.tp", "train.grad_accum_steps", "run.threads"})
    CHECK(by_effect[Effect::layout].contains(name));
}

// Every key of the reference acts: with a changed key a job gives another result, or is refused as the key
// says.
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>

#include "app/forecast/prediction.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/config/options.h"
#include "test/app/small_job.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;
using pptrain::test::contains_text;
using pptrain::test::Overrides;
using pptrain::test::with;

namespace {

namespace fs = std::filesystem;

// The result of a job in which a change shows.
enum class In {
  numbers,  // each step in metrics.jsonl: losses, norms, rates, tokens
  weights,  // the last checkpoint: weights and the optimizer's state
  files,    // the contents of the run's folder, and the steps of a trace
  log,      // the log without its numbers
  end,      // whether the run fails, and its exit code
  plan,     // predicted times and bytes: for keys that change no number or act only on a GPU
  refusal,  // the job is refused
  other     // another test checks it, since it needs processes or damage
};

struct Row {
  std::string key;
  In seen;
  Overrides before, after;  // the settings that the key acts with; after also changes the key
  std::string text = {};    // of the refusal or failure; for other: the test's file
};

// Adds `change` to the settings that the key acts with.
Row changed(const std::string& key, In seen, const Overrides& setup, const Overrides& change,
            const std::string& text = {}) {
  return {key, seen, setup, with(setup, change), text};
}

Row by_value(const std::string& key, In seen, const std::string& value, const Overrides& setup = {},
             const std::string& text = {}) {
  return changed(key, seen, setup, {key + "=" + value}, text);
}

const Overrides sparse = {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                          "model.moe_intermediate_size=16"};
const Overrides llama3 = {"model.rope_scaling.rope_type=llama3", "model.rope_scaling.factor=8",
                          "model.rope_scaling.original_max_position_embeddings=64"};
const Overrides yarn = {"model.rope_scaling.rope_type=yarn", "model.rope_scaling.factor=8",
                        "model.rope_theta=100", "model.rope_scaling.original_max_position_embeddings=64"};
const Overrides longrope = {"model.rope_scaling.rope_type=longrope", "model.rope_scaling.factor=8",
                            "model.rope_scaling.short_factor=[1.0, 1.0, 1.0, 1.0]",
                            "model.rope_scaling.long_factor=[1.0, 1.0, 1.0, 1.0]"};
const Overrides latent = {"model.arch=deepseek_v2",
                          "model.num_experts=4",
                          "model.num_experts_per_tok=1",
                          "model.moe_intermediate_size=16",
                          "model.shared_expert_intermediate_size=16",
                          "model.kv_lora_rank=6",
                          "model.qk_nope_head_dim=4",
                          "model.qk_rope_head_dim=2",
                          "model.v_head_dim=2"};
const Overrides grouped = with(latent, {"model.num_experts=8", "model.num_experts_per_tok=2"});
const Overrides two_stages = {"distributed.pp=2", "train.grad_accum_steps=4", "model.num_hidden_layers=4"};
const Overrides gpu = {"run.device=cuda"};
const Overrides large_attention =
    with(gpu, {"train.dtype=bf16", "train.seq_len=1024", "train.micro_batch_size=8", "model.head_dim=64",
               "model.num_attention_heads=32", "model.num_key_value_heads=32"});
const Overrides hosts = {"run.device=cuda", "distributed.dp_replicate=4"};
const Overrides drifting = {"optimizer.lr=0", "train.steps=20"};  // losses go up and down
const Overrides watched =
    with(drifting, {"train.divergence_steps=1", "train.divergence_window=8", "train.divergence_band=1e-9"});
const Overrides tokens = {"data.path={files}/tokens.bin"};
const Overrides texts = {"data.path={files}/texts.jsonl", "data.format=jsonl", "data.tokenizer={tokenizer}",
                         "model.vocab_size=1024"};
const Overrides prompt_keys = with(texts, {"data.prompt_key=text", "data.completion_key=answer"});
const Overrides lists = with(texts, {"data.tokens_key=tokens"});
const Overrides chats = with(texts, {"data.messages_key=messages", "data.chat.user_prefix=U",
                                     "data.chat.assistant_prefix=A", "train.seq_len=128"});
const Overrides long_rows = {"train.seq_len=64"};
const Overrides documents = with(long_rows, {"data.document_end=10"});
const Overrides validated = {"data.val_fraction=0.2", "eval.interval=1", "eval.batches=1"};
const Overrides muon = {"optimizer.name=muon"};
const Overrides six_steps = {"train.steps=6"};
const Overrides started = {"checkpoint.resume={files}/start/checkpoints/step_3", "train.steps=5"};
const Overrides sampled = {"eval.generate_interval=1", "eval.generate_tokens=3"};
const Overrides traced = {"profile.trace=true", "train.steps=6"};

Overrides sources(const std::string& first, const Overrides& more = {}) {
  return with(more, {"data.sources=[{" + first + R"(}, {name="b", path="{files}/b.txt"}])"});
}

// A key of the first source, before and after.
Row of_source(const std::string& key, In seen, const std::string& setup, const std::string& before,
              const std::string& after, const Overrides& more = {}) {
  const auto fields = [&](const std::string& own) {
    std::string all = key == "name" ? "" : R"(name="a")";
    for (const std::string& part : {setup, own}) all += (all.empty() || part.empty() ? "" : ", ") + part;
    return sources(all, more);
  };
  return {"data.sources." + key, seen, fields(before), fields(after)};
}

std::vector<Row> model_rows() {
  using enum In;
  return {
      by_value("model.arch", numbers, "qwen3"),
      by_value("model.hf_dir", numbers, "{files}/hf"),
      by_value("model.init", refusal, "hf", {}, "init = \"hf\" needs model.hf_dir"),
      by_value("model.initializer_range", numbers, "0.5"),
      by_value("model.hidden_size", numbers, "32"),
      by_value("model.intermediate_size", numbers, "32"),
      by_value("model.num_hidden_layers", numbers, "3"),
      by_value("model.num_attention_heads", numbers, "4"),
      by_value("model.num_key_value_heads", numbers, "2"),
      by_value("model.head_dim", numbers, "4"),
      by_value("model.vocab_size", numbers, "300"),
      by_value("model.rope_theta", numbers, "10"),
      by_value("model.rms_norm_eps", numbers, "0.5"),
      by_value("model.tie_word_embeddings", numbers, "true"),
      by_value("model.max_position_embeddings", refusal, "4", {},
               "seq_len = 8 is longer than model.max_position_embeddings = 4"),
      by_value("model.attention_bias", numbers, "true"),
      by_value("model.mlp_bias", numbers, "true"),
      by_value("model.num_experts", numbers, "8", sparse),
      by_value("model.num_experts_per_tok", numbers, "1", sparse),
      by_value("model.moe_intermediate_size", numbers, "32", sparse),
      by_value("model.norm_topk_prob", numbers, "true", sparse),
      by_value("model.decoder_sparse_step", numbers, "2", sparse),
      by_value("model.mlp_only_layers", numbers, "[0]", sparse),
      by_value("model.router_aux_loss_coef", numbers, "1", sparse),
      by_value("model.router_z_loss_coef", numbers, "1", sparse),
      by_value("model.router_bias_update_rate", weights, "0.1",
               with(sparse, {"model.router_bias_update_rate=0.2"})),
      by_value("model.rope_scaling.rope_type", numbers, "llama3",
               {"model.rope_scaling.rope_type=linear", "model.rope_scaling.factor=8"}),
      by_value("model.rope_scaling.factor", numbers, "8", {"model.rope_scaling.rope_type=linear"}),
      by_value("model.rope_scaling.low_freq_factor", numbers, "2", llama3),
      by_value("model.rope_scaling.high_freq_factor", numbers, "9", llama3),
      by_value("model.rope_scaling.original_max_position_embeddings", numbers, "32", llama3),
  };
}

// Keys of some families alone.
std::vector<Row> family_rows() {
  using enum In;
  const auto of = [](const std::string& key, const std::string& value, const Overrides& setup) {
    return by_value("model." + key, numbers, value, setup);
  };
  return {
      of("sliding_window", "3", {"model.arch=mistral"}),
      of("layer_types", R"(["sliding_attention", "full_attention"])",
         {"model.arch=gemma2", "model.sliding_window=3",
          R"(model.layer_types=["full_attention", "sliding_attention"])"}),
      of("rope_local_base_freq", "10", {"model.arch=gemma3_text", "model.sliding_window=3"}),
      of("partial_rotary_factor", "0.5", {"model.arch=phi3"}),
      of("no_rope_layers", "[0, 1]", {"model.arch=smollm3"}),
      of("attn_logit_softcapping", "0.1", {"model.arch=gemma2"}),
      of("final_logit_softcapping", "0.1", {"model.arch=gemma2"}),
      of("query_pre_attn_scalar", "1", {"model.arch=gemma2"}),
      of("attention_multiplier", "3", {"model.arch=granite"}),
      of("embedding_multiplier", "3", {"model.arch=granite"}),
      of("residual_multiplier", "3", {"model.arch=granite"}),
      of("logits_scaling", "3", {"model.arch=granite"}),
      of("use_parallel_residual", "false", {"model.arch=gpt_neox", "model.num_key_value_heads=2"}),
      of("shared_expert_intermediate_size", "32",
         with(sparse, {"model.arch=qwen2_moe", "model.shared_expert_intermediate_size=16"})),
      of("swiglu_limit", "0.01",
         {"model.arch=gpt_oss", "model.num_experts=4", "model.num_experts_per_tok=2"}),
      of("q_lora_rank", "8", latent),
      of("kv_lora_rank", "12", latent),
      of("qk_nope_head_dim", "8", latent),
      of("qk_rope_head_dim", "4", latent),
      of("v_head_dim", "3", latent),
      of("n_group", "2", grouped),
      of("topk_group", "2", with(grouped, {"model.n_group=4", "model.num_experts_per_tok=2"})),
      of("routed_scaling_factor", "3", latent),
      of("rope_scaling.beta_fast", "2", yarn),
      of("rope_scaling.beta_slow", "0.1", yarn),
      of("rope_scaling.mscale", "3", with(yarn, {"model.rope_scaling.mscale_all_dim=0.5"})),
      of("rope_scaling.mscale_all_dim", "3", with(yarn, {"model.rope_scaling.mscale=0.5"})),
      of("rope_scaling.truncate", "false", yarn),
      of("rope_scaling.attention_factor", "3", yarn),
      of("rope_scaling.short_factor", "[2.0, 3.0, 4.0, 5.0]", longrope),
      of("rope_scaling.long_factor", "[2.0, 3.0, 4.0, 5.0]",
         with(longrope, {"model.rope_scaling.original_max_position_embeddings=4"})),
  };
}

std::vector<Row> run_and_distributed_rows() {
  using enum In;
  return {
      by_value("run.dir", files, "{work}/other"),
      by_value("run.seed", numbers, "1"),
      by_value("run.device", plan, "cuda"),
      by_value("run.threads", plan, "2"),
      by_value("run.force_memory", other, "true", {}, "test/app/commands/bad_files_test.py"),
      by_value("distributed.pp", plan, "2", {"train.grad_accum_steps=2"}),
      by_value("distributed.dp", numbers, "2"),
      by_value("distributed.dp_replicate", numbers, "2"),
      by_value("distributed.dp_shard", numbers, "2"),
      by_value("distributed.cp", plan, "2"),
      by_value("distributed.cp_kind", plan, "ulysses", {"distributed.cp=2"}),
      by_value("distributed.tp", plan, "2"),
      by_value("distributed.ep", plan, "2", with(sparse, {"distributed.dp_shard=2"})),
      by_value("distributed.reshard_after_forward", plan, "true",
               with(two_stages, {"distributed.dp_shard=2"})),
      by_value("distributed.reduce_gradients", plan, "microbatch",
               {"distributed.dp_replicate=2", "train.grad_accum_steps=2"}),
      by_value("distributed.pp_schedule", plan, "gpipe", two_stages),
      by_value("distributed.pp_stages_per_rank", plan, "1",
               with(two_stages, {"distributed.pp_schedule=interleaved_1f1b"})),
      by_value("distributed.pp_split", plan, "[3,1]", two_stages),
      by_value("distributed.pp_head", plan, "spread", two_stages),
      by_value("distributed.pp_sequence_slices", plan, "2", two_stages),
      by_value("distributed.pp_embedding_weight", plan, "2", two_stages),
      by_value("distributed.pp_head_weight", plan, "2", two_stages),
      by_value("distributed.pp_costs", plan, "h100"),
      by_value("distributed.pp_memory_gb", refusal, "1e-6", {"distributed.pp_schedule=auto"},
               "no schedule fits into"),
      by_value("distributed.ranks_per_host", plan, "2", hosts),
      by_value("distributed.host_link_gbps", plan, "1", with(hosts, {"distributed.ranks_per_host=1"})),
      by_value("distributed.host_latency_us", plan, "1", with(hosts, {"distributed.ranks_per_host=1"})),
      // It is a millisecond at least, and a pass takes several.
      by_value("distributed.timeout_s", end, "1e-6",
               with(two_stages, {"model.intermediate_size=16384", "train.micro_batch_size=16"}),
               "distributed.timeout_s"),
      by_value("distributed.heartbeat_s", other, "0", {}, "test/app/liveness_test.py"),
      by_value("distributed.start_timeout_s", other, "1", {}, "test/app/liveness_test.py"),
  };
}

std::vector<Row> train_rows() {
  using enum In;
  return {
      by_value("train.steps", numbers, "4"),
      by_value("train.seq_len", numbers, "16"),
      by_value("train.micro_batch_size", numbers, "2"),
      by_value("train.grad_accum_steps", numbers, "2"),
      {"train.grad_accum_schedule.from_step",
       numbers,
       {"train.grad_accum_schedule=[{from_step=2, grad_accum_steps=2}]"},
       {"train.grad_accum_schedule=[{from_step=3, grad_accum_steps=2}]"}},
      {"train.grad_accum_schedule.grad_accum_steps",
       numbers,
       {"train.grad_accum_schedule=[{from_step=2, grad_accum_steps=2}]"},
       {"train.grad_accum_schedule=[{from_step=2, grad_accum_steps=3}]"}},
      by_value("train.dtype", numbers, "bf16"),
      by_value(
          "train.fp8", numbers, "rowwise",
          {"train.dtype=bf16", "model.hidden_size=32", "model.intermediate_size=32", "model.head_dim=16"}),
      by_value("train.recompute", plan, "full"),
      by_value("train.overlap_weight_gradients", plan, "false", gpu),
      by_value("train.grad_clip", weights, "0.01"),
      by_value("train.label_smoothing", numbers, "0.1"),
      by_value("train.z_loss", numbers, "0.1"),
      by_value("train.max_skipped_steps", end, "1", with(six_steps, {"optimizer.lr=1e38"}), "in a row"),
      changed("train.divergence_steps", end, drifting, watched),
      by_value("train.divergence_window", numbers, "16", watched),
      by_value("train.divergence_band", end, "1e5", watched),
      by_value("train.max_rollbacks", other, "1", watched, "test/app/train/best_and_diverged_test.cpp"),
      by_value("train.check_weights", other, "true", {}, "test/app/rank/check_weights_test.cpp"),
      by_value("train.deterministic", plan, "false", large_attention),
      by_value("optimizer.name", weights, "lion"),
      by_value("optimizer.lr", weights, "1e-3"),
      by_value("optimizer.betas", weights, "[0.5,0.95]"),
      by_value("optimizer.eps", weights, "1"),
      by_value("optimizer.weight_decay", weights, "1"),
      by_value("optimizer.muon_momentum", weights, "0.5", muon),
      by_value("optimizer.muon_lr_scale", weights, "0.5", muon),
      by_value("optimizer.muon_weight_decay", weights, "1", muon),
      by_value("optimizer.state_dtype", weights, "bf16", six_steps),
      by_value("optimizer.ema_decay", plan, "0.9"),
      by_value("optimizer.post_validation", plan, "true", two_stages),
      {"optimizer.groups.match",
       weights,
       {R"(optimizer.groups=[{match="head", lr_scale=0.1}])"},
       {R"(optimizer.groups=[{match="embedding", lr_scale=0.1}])"}},
      {"optimizer.groups.frozen",
       numbers,
       {R"(optimizer.groups=[{match="head"}])"},
       {R"(optimizer.groups=[{match="head", frozen=true}])"}},
      {"lora.rank", numbers, {"lora.rank=2"}, {"lora.rank=3"}},
      {"lora.alpha", numbers, {"lora.rank=2"}, {"lora.rank=2", "lora.alpha=5"}},
      {"lora.dropout", refusal, {"lora.rank=2"}, {"lora.rank=2", "lora.dropout=0.1"}, "leave it 0"},
      {"lora.targets",
       numbers,
       {"lora.rank=2", R"(lora.targets=["*.attn.q"])"},
       {"lora.rank=2", R"(lora.targets=["*.attn.v"])"}},
      {"optimizer.groups.lr_scale",
       weights,
       {R"(optimizer.groups=[{match="head", lr_scale=0.1}])"},
       {R"(optimizer.groups=[{match="head", lr_scale=0.2}])"}},
      {"optimizer.groups.weight_decay",
       weights,
       {R"(optimizer.groups=[{match="head"}])"},
       {R"(optimizer.groups=[{match="head", weight_decay=1}])"}},
      by_value("lr_schedule.name", numbers, "linear", six_steps),
      by_value("lr_schedule.warmup_steps", numbers, "1"),
      by_value("lr_schedule.min_lr_ratio", numbers, "0.5"),
      by_value("lr_schedule.decay_fraction", numbers, "0.5", with(six_steps, {"lr_schedule.name=wsd"})),
  };
}

std::vector<Row> data_rows() {
  using enum In;
  const std::string jsonl = R"(path="{files}/texts.jsonl", format="jsonl")";
  const std::string file = R"(path="{files}/a.txt")";
  const Overrides with_tokenizer = {"data.tokenizer={tokenizer}", "model.vocab_size=1024"};
  const Overrides template_of = {"data.tokenizer={files}/template"};
  const std::string separator = R"(document_separator="\n\n")";
  return {
      by_value("data.path", numbers, "{files}/b.txt"),
      by_value("data.format", numbers, "bin", tokens),
      by_value("data.dtype", numbers, "uint32", with(tokens, {"data.format=bin"})),
      by_value("data.text_key", numbers, "answer", texts),
      by_value("data.prompt_key", numbers, "question", prompt_keys),
      by_value("data.completion_key", numbers, "question", prompt_keys),
      by_value("data.messages_key", numbers, "other_messages", chats),
      by_value("data.tokens_key", numbers, "other_tokens", lists),
      by_value("data.labels_key", numbers, "labels", lists),
      {"data.chat.template", end, chats,
       with(texts, {"data.messages_key=messages", "data.chat.template=chatml"}),
       "no special token of the tokenizer"},
      by_value("data.chat.bos", numbers, "B", chats),
      by_value("data.chat.system_prefix", numbers, "S", chats),
      by_value("data.chat.system_suffix", numbers, "S", chats),
      by_value("data.chat.user_prefix", numbers, "S", chats),
      by_value("data.chat.user_suffix", numbers, "S", chats),
      by_value("data.chat.assistant_prefix", numbers, "S", chats),
      by_value("data.chat.assistant_suffix", numbers, "S", chats),
      by_value("data.chat.default_system", numbers, "You are",
               with(chats, {"data.messages_key=other_messages"})),
      by_value("data.chat.system", end, "refuse", chats, "takes no system message"),
      by_value("data.chat.alternate", end, "true", with(chats, {"data.messages_key=other_messages"}),
               "in turns"),
      by_value("data.chat.trim", numbers, "true", chats),
      by_value("data.max_document_tokens", numbers, "5", texts),
      changed("data.document_separator", numbers, with_tokenizer, {"data." + separator}),
      by_value("data.cache", files, "{work}/cache", texts),
      by_value("data.add_special", numbers, "false", with(texts, template_of)),
      by_value("data.bad_lines", end, "skip", with(texts, {"data.path={files}/odd.jsonl"}), "bad_lines"),
      by_value("data.document_end", numbers, "10", long_rows),
      by_value("data.packing", numbers, "best_fit", documents),
      by_value("data.lengths", numbers, "exact", with(documents, {"data.packing=none"})),
      by_value("data.balance", numbers, "schedule",
               with(documents, {"data.lengths=exact", "data.packing=none", "train.grad_accum_steps=3"})),
      by_value("data.pad_to_multiple_of", other, "8", {}, "test/core/data/document_loader_test.cpp"),
      by_value("data.shuffle", numbers, "false"),
      by_value("data.val_fraction", numbers, "0.5", validated),
      {"data.val_path",
       numbers,
       validated,
       {"data.val_path={files}/b.txt", "eval.interval=1", "eval.batches=1"}},
      changed("data.tokenizer", numbers, texts, template_of),
      of_source("name", log, file, R"(name="a")", R"(name="other")"),
      of_source("path", numbers, "", file, R"(path="{files}/c.txt")"),
      of_source("weight", numbers, file, "", "weight=3", six_steps),
      of_source("format", numbers, R"(path="{files}/tokens.bin")", "", R"(format="bin")"),
      of_source("dtype", numbers, R"(path="{files}/tokens.bin", format="bin")", "", R"(dtype="uint32")"),
      of_source("text_key", numbers, jsonl, "", R"(text_key="answer")", with_tokenizer),
      of_source("prompt_key", numbers, jsonl + R"(, completion_key="answer")", R"(prompt_key="text")",
                R"(prompt_key="question")", with_tokenizer),
      of_source("completion_key", numbers, jsonl + R"(, prompt_key="text")", R"(completion_key="answer")",
                R"(completion_key="question")", with_tokenizer),
      of_source("messages_key", numbers, jsonl, R"(messages_key="messages")",
                R"(messages_key="other_messages")", with(with_tokenizer, {"data.chat.user_prefix=U"})),
      of_source("tokens_key", numbers, jsonl, R"(tokens_key="tokens")", R"(tokens_key="other_tokens")"),
      of_source("labels_key", numbers, jsonl + R"(, tokens_key="tokens")", "", R"(labels_key="labels")"),
      of_source("document_separator", numbers, file, "", separator, with_tokenizer),
      of_source("val_fraction", numbers, file, "val_fraction=0.2", "val_fraction=0.5",
                {"eval.interval=1", "eval.batches=1"}),
      of_source("val_path", numbers, file, R"(val_path="{files}/b.txt")", R"(val_path="{files}/c.txt")",
                {"eval.interval=1", "eval.batches=1"}),
  };
}

std::vector<Row> output_rows() {
  using enum In;
  return {
      by_value("checkpoint.interval", files, "1"),
      by_value("checkpoint.memory_seconds", other, "1", {}, "test/app/launch/elastic_test.py"),
      by_value("checkpoint.minutes", files, "1e-9"),
      by_value("checkpoint.async", other, "false", {}, "test/app/train/saving_test.cpp"),
      by_value("checkpoint.keep_last_n", files, "1", {"checkpoint.interval=1"}),
      by_value("checkpoint.keep_best_n", files, "1", validated),
      {"checkpoint.resume", numbers, {"train.steps=5"}, started},
      by_value("checkpoint.data", end, "continue", with(started, {"run.seed=5"})),
      {"eval.interval", numbers, {"data.val_fraction=0.2"}, {"data.val_fraction=0.2", "eval.interval=2"}},
      by_value("eval.batches", numbers, "3", validated),
      changed("eval.generate_interval", log, {}, sampled),
      by_value("eval.generate_prompt", log, "To be", sampled),
      by_value("eval.generate_tokens", log, "5", sampled),
      by_value("metrics.log_interval", log, "1", six_steps),
      by_value("metrics.peak_tflops", plan, "2"),
      by_value("metrics.microbatch_losses", numbers, "true"),
      by_value("metrics.tensorboard", files, "true"),
      by_value("metrics.prometheus_file", files, "{work}/run.prom"),
      changed("profile.trace", files, six_steps, traced),
      by_value("profile.first_step", files, "4", traced),
      by_value("profile.steps", files, "1", traced),
  };
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const auto& some :
       {model_rows(), family_rows(), run_and_distributed_rows(), train_rows(), data_rows(), output_rows()})
    rows.insert(rows.end(), some.begin(), some.end());
  return rows;
}

std::set<std::string> all_keys() {
  std::set<std::string> keys;
  for (const config::Option& option : config::options()) keys.insert(option.name());
  for (const config::TableList& list : config::table_lists()) {
    for (const config::Option& field : list.fields) keys.insert(field.name());
  }
  return keys;
}

constexpr const char* job_text = R"([model]
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 8
vocab_size = 256
initializer_range = 0.2
[train]
steps = 3
seq_len = 8
dtype = "fp32"
grad_clip = 0.2
[optimizer]
lr = 1e-2
[lr_schedule]
warmup_steps = 2
[checkpoint]
interval = 0
resume = "none"
[metrics]
peak_tflops = 1
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Replaces each number by #, since times and rates differ from run to run.
std::string without_numbers(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool digit =
        (c >= '0' && c <= '9') || (c == '.' && out.ends_with('#')) || (c == ',' && out.ends_with('#'));
    if (!digit) out += c;
    if (digit && !out.ends_with('#')) out += '#';
  }
  return out;
}

using Seen = std::map<In, std::string>;

// Runs jobs in a folder with the files that they read.
class Bench {
 public:
  Bench() {
    fs::create_directories(files_ / "hf");
    fs::create_directories(files_ / "template");
    write_texts();
    write_tokenizer();
    std::ofstream(files_ / "hf/config.json")
        << R"({"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
               "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 256,
               "rms_norm_eps": 0.5})";
    run({});
    fs::rename(work_ / "run", files_ / "start");
  }

  std::string refusal(const Overrides& overrides) {
    try {
      plan_of(overrides);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  // The prediction of the job.
  std::string predicted(const Overrides& overrides) {
    const app::Plan plan = plan_of(overrides);
    const app::CostSource source = app::make_cost_source(plan, plan.job.distributed.pp_costs);
    const app::Prediction p = app::predict(plan, source);
    std::string text =
        fmt::format("{} s, {} of the peak", p.step_time, p.tokens_per_s / app::peak_flops(plan.job, source));
    for (size_t rank = 0; rank < p.bytes.size(); ++rank) {
      text += fmt::format("; {} s", p.optimizer_time[rank]);
      for (const auto& [kind, bytes] : p.bytes[rank].kinds()) text += fmt::format(" {} {}", kind, bytes);
    }
    return text;
  }

  // The results of a run. Known jobs are not run again.
  const Seen& result(const Overrides& overrides) {
    const auto [known, first] = known_.try_emplace(overrides);
    if (first) known->second = run(overrides);
    return known->second;
  }

  Seen run(const Overrides& overrides) {
    fs::remove_all(work_);
    const app::Plan job = plan_of(overrides);
    const test::CapturedLog log;
    Seen seen;
    test::JobResult result;
    try {
      result = test::start_plan(job);
      seen[In::end] = fmt::format("exit code {}", result.exit_code);
    } catch (const std::exception& error) {
      seen[In::end] = fmt::format("failed: {}", without_numbers(error.what()));
    }
    seen[In::log] = without_numbers(log.text());
    for (const std::string& line : result.metrics) seen[In::numbers] += line + '\n';
    for (const auto& [name, sum] : result.checksums) seen[In::weights] += name + ' ' + sum + '\n';
    seen[In::files] = files_of(job.job.run.dir);
    return seen;
  }

 private:
  app::Plan plan_of(Overrides overrides) const {
    if (std::ranges::none_of(overrides, [](const std::string& o) { return o.starts_with("data.sources="); }))
      overrides.insert(overrides.begin(), "data.path={files}/a.txt");
    overrides.insert(overrides.begin(), "run.dir={work}/run");
    for (std::string& text : overrides) {
      text = replaced(text, "{files}", files_.string());
      text = replaced(text, "{work}", work_.string());
      text = replaced(text, "{tokenizer}", tokenizer.string());
    }
    return app::parse_plan(job_text, "options.toml", overrides);
  }

  std::string files_of(const fs::path& run_dir) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(work_))
      names.push_back(without_numbers(fs::relative(entry.path(), work_).string()));
    std::ranges::sort(names);
    std::string text;
    for (const std::string& name : names) text += name + '\n';
    std::ifstream file(run_dir / "trace.json");
    if (!file) return text;
    const auto trace = nlohmann::json::parse(file);
    for (const auto& step : trace.at("otherData").at("steps"))
      text += fmt::format("traced step {}\n", step.at("step").get<int64_t>());
    return text;
  }

  void write_texts() const {
    std::ifstream file(test::shakespeare);
    std::string text(60000, ' ');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    size_t begin = 0;
    for (const char* name : {"a.txt", "b.txt", "c.txt"}) {
      std::ofstream(files_ / name) << text.substr(begin, 20000);
      begin += 20000;
    }
    std::ofstream bin(files_ / "tokens.bin", std::ios::binary);  // as uint16 every second one is 0
    for (size_t i = 0; i < 8000; ++i) bin.write((std::string(1, text[i]) + std::string(3, '\0')).data(), 4);
    std::ofstream jsonl(files_ / "texts.jsonl"), odd(files_ / "odd.jsonl");
    for (size_t i = 0; i < 40; ++i) {
      const auto part = [&](size_t which) { return text.substr(1000 * i + 200 * which, 100 + 10 * which); };
      const auto message = [&](const char* role, size_t which) {
        return nlohmann::json{{"role", role}, {"content", " " + part(which)}};
      };
      const std::string first = part(0), second = part(1);
      const std::vector<int> ids(first.begin(), first.end()), others(second.begin(), second.end());
      std::vector<int> labels(ids.size(), -100);
      std::copy(ids.begin(), ids.begin() + 50, labels.begin());
      const std::string document =
          nlohmann::json{{"text", part(0)},
                         {"question", part(1)},
                         {"answer", part(2)},
                         {"tokens", ids},
                         {"other_tokens", others},
                         {"labels", labels},
                         {"messages", {message("system", 0), message("user", 1), message("assistant", 2)}},
                         {"other_messages", {message("assistant", 1), message("assistant", 2)}}}
              .dump() +
          '\n';
      jsonl << document;
      odd << document;
    }
    odd << "{\"text\": \n";
  }

  // Copies the tokenizer, and makes one with the same tokens that adds one before each text.
  void write_tokenizer() const {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(tokenizer / name, files_ / "template" / name);
    std::ifstream file(tokenizer / "tokenizer.json");
    nlohmann::json json = nlohmann::json::parse(file);
    json["post_processor"] = nlohmann::json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}})");
    std::ofstream(files_ / "template/tokenizer.json") << json.dump();
  }

  const fs::path tokenizer = test::source_dir() / "configs/data/tokenizer";
  test::TemporaryFolder folder_;
  fs::path files_ = folder_.path() / "files", work_ = folder_.path() / "work";
  std::map<Overrides, Seen> known_;
};

using Repeated = std::set<std::pair<In, Overrides>>;

void check_run(Bench& bench, const Row& row, Repeated& repeated) {
  const Seen before = bench.result(row.before), after = bench.result(row.after);
  if (row.seen == In::end) {
    const auto succeeds = [](const Seen& seen) { return seen.at(In::end) == "exit code 0"; };
    CHECK(succeeds(before) != succeeds(after));
    CHECK_THAT(before.at(In::end) + after.at(In::end), contains_text(row.text));
  } else {
    CHECK_THAT(before.at(In::end), !contains_text("failed"));
    CHECK_THAT(after.at(In::end), !contains_text("failed"));
    const bool differ = before.at(row.seen) != after.at(row.seen);
    CHECK(differ);  // the texts themselves are long
  }
  // The difference is not a random one: a second run of the same job gives the same result.
  if (!repeated.emplace(row.seen, row.before).second) return;
  const bool same = bench.run(row.before).at(row.seen) == before.at(row.seen);
  CHECK(same);
}

void check_other_test(const Row& row) {
  std::ifstream file(test::source_dir() / row.text);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK_THAT(text, contains_text(row.key.substr(row.key.rfind('.') + 1)));
}

}  // namespace

TEST_CASE("every key of the reference has a row here, and every row a key") {
  std::set<std::string> rows;
  for (const Row& row : all_rows()) {
    CAPTURE(row.key);
    CHECK(rows.insert(row.key).second);
    const std::string key = row.key.substr(row.key.rfind('.') + 1);
    const auto changes = [&](const std::string& text) { return text.find(key) != std::string::npos; };
    CHECK(std::ranges::any_of(row.after, changes));
    CHECK(row.before != row.after);
  }
  for (const std::string& key : all_keys()) {
    INFO(key << " has no row: say with what it acts, and where that is seen");
    CHECK(rows.contains(key));
    rows.erase(key);
  }
  CHECK(rows.empty());
}

TEST_CASE("every key acts") {
  Bench bench;
  Repeated repeated;
  for (const Row& row : all_rows()) {
    CAPTURE(row.key);
    switch (row.seen) {
      case In::plan:
        CHECK(bench.predicted(row.before) != bench.predicted(row.after));
        break;
      case In::refusal:
        CHECK(bench.refusal(row.before).empty());
        CHECK_THAT(bench.refusal(row.after), contains_text(row.text));
        break;
      case In::other:
        check_other_test(row);
        break;
      default:
        check_run(bench, row, repeated);
    }
  }
}

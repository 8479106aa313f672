#include "core/config/options.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/config/data_sources.h"
#include "core/config/job_config.h"
#include "core/config/nearest.h"
#include "core/config/validate.h"

namespace pptrain::config {
namespace {

// Upper limits of single numbers, far above any real run; their products are checked in sizes.cpp.
constexpr double max_size = 1 << 24;
constexpr double max_ranks = 1 << 20;
constexpr double max_steps = 1e12;

void add_run(std::vector<Option>& options) {
  SectionFields<RunSection> run(options, "run", [](JobConfig& j) -> RunSection& { return j.run; });
  run("dir", &RunSection::dir,
      "Folder of the run's output: metrics.jsonl, job.toml and checkpoints/. One run at a time. Relative to "
      "the current directory, as data.cache is; paths of what a job reads are relative to the job's file.")
      .path(Names::written)
      .decides(Effect::none);
  run("seed", &RunSection::seed, "Seed of the initial weights and of the order of the data.")
      .at_least(0)
      .only_if(
          "model.init = random, data.shuffle = true or data.format = random",
          {"model.init", "data.shuffle", "data.format"},
          [](const JobConfig& j) { return j.model.init == Init::random || j.data.shuffle || any_random(j); })
      .decides(Effect::data);
  run("device", &RunSection::device, "Where the ranks compute.").decides(Effect::layout);
  run("threads", &RunSection::threads,
      "CPU threads of each rank. Results are equal to the bit only between runs with the same number.")
      .between(1, 4096)
      .decides(Effect::layout);
  run("force_memory", &RunSection::force_memory,
      "false: a job whose predicted memory exceeds what its hosts have available, or its GPUs have, ends "
      "before it "
      "starts. true: it starts, and may fail or be killed.")
      .decides(Effect::none);
}

// Architectures with latent attention.
const std::vector<std::string>& deepseek() {
  static const std::vector<std::string> names = {"deepseek_v2", "deepseek_v3"};
  return names;
}

bool has_plain_attention(const JobConfig& job) {
  return std::ranges::find(deepseek(), job.model.arch) == deepseek().end();
}

// intermediate_size is the width of mixtral's and gpt_oss's experts too.
bool has_intermediate_size(const JobConfig& job) {
  return job.model.arch == "mixtral" || job.model.arch == "gpt_oss" || has_dense_layers(job.model);
}

void add_model_sizes(const SectionFields<ModelSection>& model) {
  model("hidden_size", &ModelSection::hidden_size, "Width of the residual stream. 0: from hf_dir.")
      .between(0, max_size);
  model("intermediate_size", &ModelSection::intermediate_size,
        "Inner width of the MLP, in models with experts that of the dense layers; of each expert of mixtral "
        "and gpt_oss. 0: from hf_dir.")
      .between(0, max_size)
      .only_if("layers that have an MLP, or the experts of mixtral or gpt_oss",
               {"model.decoder_sparse_step", "model.mlp_only_layers", "model.arch"}, has_intermediate_size);
  model("num_hidden_layers", &ModelSection::num_hidden_layers, "Transformer blocks. 0: from hf_dir.")
      .between(0, 1 << 16);
  model("num_attention_heads", &ModelSection::num_attention_heads, "Query heads. 0: from hf_dir.")
      .between(0, 1 << 16);
  model("num_key_value_heads", &ModelSection::num_key_value_heads,
        "Key and value heads; divides num_attention_heads. 0: from hf_dir, else num_attention_heads.")
      .between(0, 1 << 16)
      .only_if("an arch without latent attention", {"model.arch"}, has_plain_attention);
  model("head_dim", &ModelSection::head_dim,
        "Width of one head; even. 0: from hf_dir, else hidden_size / num_attention_heads.")
      .between(0, 1 << 16)
      .only_if("an arch without latent attention", {"model.arch"}, has_plain_attention);
  model("vocab_size", &ModelSection::vocab_size,
        "Rows of the embedding and of the head. Text files are bytes: 256. 0: from hf_dir.")
      .between(0, 1 << 28);
}

// Names are those of Hugging Face's Qwen3-MoE, if it has them.
void add_experts(const SectionFields<ModelSection>& model) {
  const std::string arch = "model.arch";
  const auto sparse =
      model.only_with(arch, {"qwen3_moe", "mixtral", "qwen2_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"});
  const auto softmax = model.only_with(arch, {"qwen3_moe", "mixtral", "qwen2_moe", "gpt_oss", "deepseek_v2"});
  const auto grouped = model.only_with(arch, deepseek());
  const auto own_width = model.only_with(arch, {"qwen3_moe", "qwen2_moe", "deepseek_v2", "deepseek_v3"});
  sparse("num_experts", &ModelSection::num_experts, "Experts of each sparse layer. 0: from hf_dir.")
      .between(0, 4096);
  sparse("num_experts_per_tok", &ModelSection::num_experts_per_tok, "Experts of each token. 0: from hf_dir.")
      .between(0, 4096);
  own_width("moe_intermediate_size", &ModelSection::moe_intermediate_size,
            "Inner width of each expert. 0: from hf_dir.")
      .between(0, max_size);
  model(
      "shared_expert_intermediate_size", &ModelSection::shared_expert_intermediate_size,
      "Inner width of the MLP that every token of a sparse layer passes beside its experts. 0: from hf_dir.")
      .between(0, max_size)
      .only_with(arch, {"qwen2_moe", "deepseek_v2", "deepseek_v3"});
  model("swiglu_limit", &ModelSection::swiglu_limit,
        "Bound of the inner values of each expert: of gate from above, of up on both sides.")
      .above(0)
      .only_with(arch, {"gpt_oss"});
  model("norm_topk_prob", &ModelSection::norm_topk_prob,
        "The probabilities of a token's experts are divided by their sum; those of mixtral and gpt_oss "
        "always are.")
      .only_with(arch, {"qwen3_moe", "qwen2_moe", "deepseek_v3"});
  grouped("n_group", &ModelSection::n_group,
          "Experts lie in this many groups of equal size, of which a token uses topk_group.")
      .between(1, 4096);
  grouped("topk_group", &ModelSection::topk_group, "Groups of experts that a token chooses among.")
      .between(1, 4096);
  grouped("routed_scaling_factor", &ModelSection::routed_scaling_factor,
          "Multiplies the weights of a token's experts.")
      .above(0);
  model("decoder_sparse_step", &ModelSection::decoder_sparse_step,
        "Layer i, counted from 1, has experts if this number divides i; the other layers have an MLP.")
      .between(1, 1 << 16)
      .only_with(arch, {"qwen3_moe", "qwen2_moe"});
  own_width(
      "mlp_only_layers", &ModelSection::mlp_only_layers,
      "Layers, counted from 0, that have an MLP and no experts; of deepseek_v2 and deepseek_v3 the first "
      "ones.")
      .between(0, 1 << 16)
      .or_empty();
  softmax(
      "router_aux_loss_coef", &ModelSection::router_aux_loss_coef,
      "Coefficient of the loss that balances the experts of each sparse layer: num_experts * sum over "
      "experts of (choices / tokens) * (mean probability), over the microbatches of all data-parallel "
      "ranks together, without padding, summed over the sparse layers. transformers averages over the "
      "layers instead: its router_aux_loss_coef divided by the number of sparse layers has about the same "
      "effect. It changes gradients, not the reported loss. Never taken from hf_dir.")
      .between(0, 1000)
      .decides(Effect::course);
  softmax("router_z_loss_coef", &ModelSection::router_z_loss_coef,
          "Coefficient of the mean squared logsumexp of each router's logits, which keeps them small. It "
          "changes gradients, not the reported loss.")
      .between(0, 1000)
      .decides(Effect::course);
  sparse(
      "router_bias_update_rate", &ModelSection::router_bias_update_rate,
      "Balances experts without a loss: in each step, a bias on an expert's probability falls by this much "
      "if its load is above the mean, and rises if it is below. The bias decides only which experts are "
      "chosen, and does not follow [lr_schedule]. 0: no bias.")
      .between(0, 1)
      .decides(Effect::course);
}

bool has_rotary_embeddings(const JobConfig& job) {
  return job.model.arch != "gpt2";
}

// Which tokens attention sees, and what rotates queries and keys. Names are those of Hugging Face's
// config.json.
void add_windows(const SectionFields<ModelSection>& model) {
  const std::string arch = "model.arch";
  model("sliding_window", &ModelSection::sliding_window,
        "Keys that a token sees in layers with a sliding window, its own among them. 0: from hf_dir, else no "
        "window.")
      .between(0, max_size)
      .only_with(arch, {"qwen2", "mistral", "gemma2", "gemma3_text", "phi3", "gpt_oss", "starcoder2"});
  model("layer_types", &ModelSection::layer_types,
        "sliding_attention or full_attention for each layer. Empty: every second layer of gemma2 and gpt_oss "
        "and every sixth of gemma3_text is full, none of qwen2.")
      .one_of({"sliding_attention", "full_attention"})
      .or_empty()
      .only_if("sliding_window > 0 and an arch whose layers may differ",
               {"model.sliding_window", "model.arch"}, [](const JobConfig& j) {
                 const std::string& name = j.model.arch;
                 return j.model.sliding_window > 0 &&
                        (name == "qwen2" || name == "gemma2" || name == "gemma3_text" || name == "gpt_oss");
               });
  model("rope_local_base_freq", &ModelSection::rope_local_base_freq,
        "Base of the rotary frequencies in layers with a sliding window; rope_theta is that of the others.")
      .above(0)
      .only_with(arch, {"gemma3_text"});
  model("partial_rotary_factor", &ModelSection::partial_rotary_factor,
        "How much of each head rotary embeddings turn: the first head_dim * partial_rotary_factor dims.")
      .above_up_to(0, 1)
      .only_with(arch, {"phi3", "gpt_neox"});
  model("no_rope_layers", &ModelSection::no_rope_layers,
        "For each layer 1 with rotary embeddings, 0 without. Empty: every fourth layer has none.")
      .between(0, 1)
      .or_empty()
      .only_with(arch, {"smollm3"});
}

// Factors and bounds of what layers compute. Names are those of Hugging Face's config.json.
void add_scales(const SectionFields<ModelSection>& model) {
  const std::string arch = "model.arch";
  const auto granite = model.only_with(arch, {"granite"});
  model("attn_logit_softcapping", &ModelSection::attn_logit_softcapping,
        "Bounds attention's scores s to c * tanh(s / c). 0: not.")
      .between(0, 1e6)
      .only_with(arch, {"gemma2"});
  model("final_logit_softcapping", &ModelSection::final_logit_softcapping,
        "Bounds the logits in the same way. 0: not.")
      .between(0, 1e6)
      .only_with(arch, {"gemma2", "gemma3_text"});
  model("query_pre_attn_scalar", &ModelSection::query_pre_attn_scalar,
        "Attention's scores are divided by the root of this number. 0: from hf_dir, else head_dim.")
      .between(0, max_size)
      .only_with(arch, {"gemma2", "gemma3_text"});
  granite("attention_multiplier", &ModelSection::attention_multiplier,
          "Attention's scores are multiplied by this number. 0: from hf_dir, else 1 / sqrt(head_dim).")
      .between(0, 1e6);
  granite("embedding_multiplier", &ModelSection::embedding_multiplier,
          "Embeddings are multiplied by this number.")
      .above(0);
  granite("residual_multiplier", &ModelSection::residual_multiplier,
          "Attention's and the MLP's results are multiplied by this number before they are added.")
      .above(0);
  granite("logits_scaling", &ModelSection::logits_scaling, "Logits are divided by this number.").above(0);
  model("use_parallel_residual", &ModelSection::use_parallel_residual,
        "Attention and MLP take the same residual stream, and both results are added to it. false: the MLP "
        "takes the sum with attention's.")
      .only_with(arch, {"gpt_neox"});
}

// Latent attention. Names are those of Hugging Face's config.json.
void add_latent(const SectionFields<ModelSection>& model) {
  const auto latent = model.only_with("model.arch", deepseek());
  latent("q_lora_rank", &ModelSection::q_lora_rank,
         "Width of the row that a token's queries come from. 0: from hf_dir, else from the residual stream.")
      .between(0, max_size);
  latent("kv_lora_rank", &ModelSection::kv_lora_rank,
         "Width of the row that keys and values of all heads come from. 0: from hf_dir.")
      .between(0, max_size);
  latent("qk_nope_head_dim", &ModelSection::qk_nope_head_dim,
         "Dims of each head's query and key that are not rotated. 0: from hf_dir.")
      .between(0, 1 << 16);
  latent("qk_rope_head_dim", &ModelSection::qk_rope_head_dim,
         "Dims of each head's query and key that are rotated; even. 0: from hf_dir.")
      .between(0, 1 << 16);
  latent("v_head_dim", &ModelSection::v_head_dim,
         "Width of each head's value; at most qk_nope_head_dim + qk_rope_head_dim. 0: from hf_dir.")
      .between(0, 1 << 16);
}

void add_model(std::vector<Option>& options) {
  SectionFields<ModelSection> model(
      options, "model", [](JobConfig& j) -> ModelSection& { return j.model; }, Effect::model);
  model("arch", &ModelSection::arch,
        "Architecture, by its name in transformers. SmolLM2 and models built like Llama are llama; "
        "Phi-4-mini is phi3, Pythia gpt_neox. With hf_dir, config.json says it.")
      .one_of({"llama", "qwen3", "qwen3_moe", "mixtral", "qwen2", "mistral", "gemma2", "gemma3_text", "olmo2",
               "phi3", "smollm3", "granite", "gpt2", "gpt_neox", "qwen2_moe", "gpt_oss", "deepseek_v2",
               "deepseek_v3", "starcoder2"});
  model("hf_dir", &ModelSection::hf_dir,
        "Hugging Face directory whose config.json describes the model. Keys of this section that fix the "
        "shape of the weights may then be left out, and must agree where they are given; other keys override "
        "config.json.")
      .path()
      .decides(Effect::none);
  model("init", &ModelSection::init,
        "Initial weights: random, from run.seed, or hf, from hf_dir's model*.safetensors.")
      .decides(Effect::none);
  model("initializer_range", &ModelSection::initializer_range,
        "Standard deviation of the random initial weights.")
      .between(0, 10)
      .only_with("model.init", {"random"})
      .decides(Effect::none);
  add_model_sizes(model);
  model("rope_theta", &ModelSection::rope_theta, "Base of the rotary frequencies.")
      .above(0)
      .only_if("an arch with rotary embeddings", {"model.arch"}, has_rotary_embeddings);
  model("rms_norm_eps", &ModelSection::rms_norm_eps,
        "Added to the mean square in every RMSNorm, to the variance in every LayerNorm.")
      .between(0, 1);
  model("tie_word_embeddings", &ModelSection::tie_word_embeddings,
        "The head uses the embedding's weight, also where the two lie on different stages.");
  model("max_position_embeddings", &ModelSection::max_position_embeddings,
        "Longest sequence that the model is meant for. 0: from hf_dir, else train.seq_len.")
      .between(0, max_size)
      .decides(Effect::course);
  model("attention_bias", &ModelSection::attention_bias, "Biases in the q, k, v and o projections.");
  model("mlp_bias", &ModelSection::mlp_bias, "Biases in the MLP's projections (llama, smollm3, granite).");
  add_windows(model);
  add_scales(model);
  add_latent(model);
  add_experts(model);
}

void add_yarn(const SectionFields<RopeScaling>& yarn) {
  yarn("beta_fast", &RopeScaling::beta_fast,
       "Frequencies that turn this often or more in the original context are not scaled.")
      .above(0);
  yarn("beta_slow", &RopeScaling::beta_slow, "Frequencies that turn this often or less are scaled in full.")
      .above(0);
  yarn("mscale", &RopeScaling::mscale,
       "With mscale_all_dim, changes the recommended attention_factor (DeepSeek). 0: not given.")
      .between(0, 100);
  yarn("mscale_all_dim", &RopeScaling::mscale_all_dim, "See mscale.").between(0, 100);
  yarn("truncate", &RopeScaling::truncate,
       "The bounds between scaled and unscaled frequencies are rounded to whole dims.");
}

void add_rope_scaling(std::vector<Option>& options) {
  SectionFields<RopeScaling> rope(
      options, "model.rope_scaling", [](JobConfig& j) -> RopeScaling& { return j.model.rope_scaling; },
      Effect::model);
  const std::string type = "model.rope_scaling.rope_type";
  const auto llama3 = rope.only_with(type, {"llama3"}), longrope = rope.only_with(type, {"longrope"});
  rope("rope_type", &RopeScaling::rope_type,
       "How rotary frequencies are scaled: default does not, linear divides all by factor, dynamic raises "
       "rope_theta for sequences beyond max_position_embeddings, llama3 divides the low ones (Llama 3.1), "
       "yarn (arXiv 2309.00071) too, longrope (arXiv 2402.13753) divides each by a factor of its own.")
      .only_if("an arch with rotary embeddings", {"model.arch"}, has_rotary_embeddings);
  rope("factor", &RopeScaling::factor, "The context's length divided by the original one.")
      .at_least(1)
      .only_with(type, {"linear", "llama3", "dynamic", "yarn", "longrope"});
  llama3("low_freq_factor", &RopeScaling::low_freq_factor,
         "Wavelengths above original_max_position_embeddings / low_freq_factor are scaled in full.")
      .above(0);
  llama3("high_freq_factor", &RopeScaling::high_freq_factor,
         "Wavelengths below original_max_position_embeddings / high_freq_factor are not scaled.")
      .above(0);
  rope("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings,
       "Context, in tokens, that the model was first trained with.")
      .between(1, max_size)
      .only_with(type, {"llama3", "yarn", "longrope"});
  add_yarn(rope.only_with(type, {"yarn"}));
  rope("attention_factor", &RopeScaling::attention_factor,
       "Multiplies rotated queries and keys. 0: as the method's paper recommends for factor.")
      .between(0, 100)
      .only_with(type, {"yarn", "longrope"});
  longrope("short_factor", &RopeScaling::short_factor,
           "A divisor of each frequency, for sequences of up to original_max_position_embeddings tokens.")
      .above(0)
      .or_empty();
  longrope("long_factor", &RopeScaling::long_factor, "The same for longer sequences.").above(0).or_empty();
}

void add_axes(const SectionFields<DistributedSection>& distributed) {
  distributed("pp", &DistributedSection::pp,
              "Pipeline ranks. The world size is pp * dp_replicate * dp_shard * cp * tp, tp innermost.")
      .between(1, max_ranks);
  distributed("dp", &DistributedSection::dp, "Short for dp_shard; give one of the two.")
      .between(-1, max_ranks);
  distributed("dp_replicate", &DistributedSection::dp_replicate,
              "Data-parallel copies of the model. Each takes its own grad_accum_steps microbatches.")
      .between(1, max_ranks);
  distributed(
      "dp_shard", &DistributedSection::dp_shard,
      "Data-parallel ranks that share one copy of the model (FSDP): each holds a shard of the weights, "
      "gradients and optimizer states, and takes its own grad_accum_steps microbatches. The results equal "
      "those of as many dp_replicate ranks, to the bit. -1: all ranks that the other axes leave.")
      .between(-1, max_ranks);
  distributed("cp", &DistributedSection::cp, "Context-parallel ranks, which share each sequence.")
      .between(1, max_ranks);
  distributed("cp_kind", &DistributedSection::cp_kind,
              "How context-parallel ranks divide attention. \"ring\": keys and values travel from rank to "
              "rank; train.seq_len must be divisible by 2 * cp. \"ulysses\": ranks exchange tokens for "
              "heads; train.seq_len and the heads of a tensor-parallel rank must be divisible by cp.")
      .only_if("distributed.cp > 1", {"distributed.cp"},
               [](const JobConfig& j) { return j.distributed.cp > 1; });
  distributed("tp", &DistributedSection::tp, "Tensor-parallel ranks, which share each layer.")
      .between(1, max_ranks);
  distributed("ep", &DistributedSection::ep, "Expert-parallel ranks; divides dp_shard * cp * tp.")
      .between(1, max_ranks);
}

int64_t shards(const DistributedSection& d) {
  return d.dp.value_or(d.dp_shard);
}

// Is a parameter, or an expert's parameter, sharded? Groups fsdp and efsdp of parallel/mesh.
bool shares_weights(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return shards(d) * d.cp > 1 || (job.model.num_experts > 0 && d.tp > d.ep);
}

// Do several ranks have gradients of the same stage? Group stage of parallel/mesh.
bool sums_gradients(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return d.dp_replicate > 1 || shards(d) > 1 || d.cp > 1 || d.tp > 1;
}

// How ranks that share a copy of the model (dp_shard, cp) exchange it.
void add_sharding(const SectionFields<DistributedSection>& distributed) {
  distributed(
      "reshard_after_forward", &DistributedSection::reshard_after_forward,
      "true: a block's gathered weights are freed after each forward and gathered again for the backward, so "
      "that two or three blocks are whole at a time. false: a stage's weights are gathered once a step and "
      "kept. Not set: false if pp is above 1, since many microbatches use them, else true.")
      .only_if(
          "ranks that share weights: dp_shard or cp > 1, or with experts tp > ep",
          {"distributed.dp_shard", "distributed.dp", "distributed.cp", "distributed.tp", "distributed.ep"},
          shares_weights)
      .unless_given_as("false");
  distributed("reduce_gradients", &DistributedSection::reduce_gradients,
              "When gradients are reduced over the ranks of a stage. step: once, after all microbatches; "
              "until then each rank holds whole gradients of its stages. microbatch: after each one; a rank "
              "holds its shard, and whole gradients only of the blocks that it is computing.")
      .only_if("several ranks to a stage: dp_replicate, dp_shard, cp or tp > 1",
               {"distributed.dp_replicate", "distributed.dp_shard", "distributed.dp", "distributed.cp",
                "distributed.tp"},
               sums_gradients);
}

// Is there a split to weigh? Other schedules than these two may have several stages on one rank.
bool splits_evenly(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  const std::string schedule = to_lower(d.pp_schedule);
  const bool one_stage =
      d.pp == 1 && d.pp_stages_per_rank <= 1 && (schedule == "1f1b" || schedule == "gpipe");
  return d.pp_split == PipelineSplit() && !one_stage;
}

// Do predictions see more than one host? CPU ranks are taken to share one, unless ranks_per_host is given.
bool has_hosts(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return job.run.device == Device::cuda || d.ranks_per_host > 0 || !d.pp_costs.empty();
}

void add_distributed(std::vector<Option>& options) {
  SectionFields<DistributedSection> distributed(
      options, "distributed", [](JobConfig& j) -> DistributedSection& { return j.distributed; },
      Effect::layout);
  const auto even_split = distributed.only_if(
      "an even split of several stages",
      {"distributed.pp_split", "distributed.pp", "distributed.pp_stages_per_rank", "distributed.pp_schedule"},
      splits_evenly);
  const auto hosts =
      distributed.only_if("several hosts: run.device = cuda, ranks_per_host or pp_costs",
                          {"distributed.ranks_per_host", "run.device", "distributed.pp_costs"}, has_hosts);
  add_axes(distributed);
  add_sharding(distributed);
  distributed("pp_schedule", &DistributedSection::pp_schedule,
              "Order of the passes on each rank: gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
              "interleaved_zb, zbv, v_half, v_min or dualpipe_v (in any case, or PyTorch's class name); a "
              ".csv file with a schedule in PyTorch's text form; auto, the fastest that fits, by the costs "
              "of distributed.pp_costs, or an order found in seconds where that is at least 1 % faster; or "
              "search, an order found for these costs and this memory, which takes up to a minute at the "
              "start. Orders found are kept as schedule.csv beside the run.")
      .path(Names::read, ".csv")
      .such_as({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb", "zbv",
                "v_half", "v_min", "dualpipe_v", "auto", "search"});
  distributed("pp_stages_per_rank", &DistributedSection::pp_stages_per_rank,
              "Stages on each pipeline rank, for schedules that take several. 0: the schedule's usual "
              "number, 1 or 2.")
      .between(0, 64);
  distributed(
      "pp_split", &DistributedSection::pp_split,
      "Transformer blocks of each stage, first to last. \"even\": as equal as possible, more on the earlier "
      "stages. \"cost\": the predicted step is shortest, embedding and head included. Or a list, or a "
      "layout: stages separated by |, each a number, or * for an even share of the rest, such as "
      "\"1|*|*|1\", or Megatron's letters, such as \"Ett|ttt|ttL\" or \"Et|(tt|)*6tL\".")
      .between(1, 1 << 16)
      .such_as({"even", "cost"});
  distributed(
      "pp_head", &DistributedSection::pp_head,
      "Where the head is computed. last: on the last stage. spread: each pipeline rank has an equal part of "
      "its vocabulary and computes it between its blocks, so that no rank computes more than others; a rank "
      "then holds up to two microbatches more, and losses round like those of tp ranks. The ranks also share "
      "out the embedding's float32 weights and optimizer state, but not with tied or frozen weights, "
      "dp_shard, cp, optimizer.post_validation or gradients reduced by microbatch. auto: spread where the "
      "predicted step is 1 % shorter, or where the job fits with it alone.")
      .only_if("distributed.pp > 1", {"distributed.pp"},
               [](const JobConfig& j) { return j.distributed.pp > 1; });
  distributed("pp_sequence_slices", &DistributedSection::pp_sequence_slices,
              "Sequence slices of a microbatch, of equal cost, which go through the pipeline as microbatches "
              "do: forward first to last, backward last to first. Keys and values of a sequence stay until "
              "its backward passes end. For long sequences of which a step has few: it shortens the bubble, "
              "and activations take less memory; losses round as those of cp ranks. 0: chosen with the "
              "schedule by pp_schedule = \"auto\" or \"search\".")
      .between(0, 256);
  even_split("pp_embedding_weight", &DistributedSection::pp_embedding_weight,
             "The embedding counts as this many blocks in an even split.")
      .between(0, 1 << 16);
  even_split("pp_head_weight", &DistributedSection::pp_head_weight,
             "The final norm and head count as this many blocks in an even split.")
      .between(0, 1 << 16);
  distributed("pp_costs", &DistributedSection::pp_costs,
              "Source of the times by which pp_schedule, pp_split, pp_head, data.balance and pptrain plan "
              "choose: a trace.json that an earlier run of this model wrote (profile.trace), or a "
              "modelled device: cpu, a100, h100, h200 or b200. Empty: the device of run.device, h100 for "
              "cuda; pptrain plan measures the CPU that it runs on.")
      .path(Names::read, ".json")
      .such_as({"cpu", "a100", "h100", "h200", "b200"});
  distributed("pp_memory_gb", &DistributedSection::pp_memory_gb,
              "GB (1e9 bytes) that pp_schedule = \"auto\" or \"search\" may give each rank; pptrain plan "
              "--search has --memory-gb. 0: the memory of a known GPU, no bound on a CPU.")
      .between(0, 1e6)
      .only_if("distributed.pp_schedule = auto or search", {"distributed.pp_schedule"},
               [](const JobConfig& j) {
                 const std::string schedule = to_lower(j.distributed.pp_schedule);
                 return schedule == "auto" || schedule == "search";
               });
  distributed(
      "ranks_per_host", &DistributedSection::ranks_per_host,
      "For predictions: consecutive ranks that share a host. 0: 8 on GPUs, all on CPUs. On CPUs pairs of "
      "dualpipe_v hide exchanges of tp, cp and ep where this says that a stage is on several hosts.")
      .between(0, max_ranks);
  hosts("host_link_gbps", &DistributedSection::host_link_gbps,
        "For predictions: Gb/s at which a rank sends to other hosts. 0: 90 % of InfiniBand of the "
        "GPU's generation, or of 10 Gb/s Ethernet on CPUs. pptrain doctor measures it.")
      .between(0, 1e6);
  hosts("host_latency_us", &DistributedSection::host_latency_us,
        "For predictions: microseconds that a short message takes to another host. 0: 20 on GPUs, 60 "
        "on CPUs. pptrain doctor measures it.")
      .between(0, 1e9);
  distributed("timeout_s", &DistributedSection::timeout_s,
              "Seconds that a rank waits for another one; then the run ends with a report. It limits slow "
              "work: dead ranks are found by heartbeat_s. On GPUs the time runs from when the GPU begins an "
              "operation, and also limits the set-up of each NCCL group.")
      .above_up_to(0, 1e9)
      .decides(Effect::none);
  distributed("heartbeat_s", &DistributedSection::heartbeat_s,
              "Seconds without a heartbeat after which a rank counts as dead (stopped, unreachable, stuck in "
              "the kernel) and the run ends. A killed rank is found at once. 0: no heartbeats, for example "
              "under a debugger.")
      .between(0, 1e6)
      .decides(Effect::none);
  distributed("start_timeout_s", &DistributedSection::start_timeout_s,
              "Seconds that the start waits for all processes of the launch; over TCP the error names those "
              "that are missing.")
      .above_up_to(0, 1e6)
      .decides(Effect::none);
}

void add_divergence(const SectionFields<TrainSection>& train) {
  const auto watch = train.only_if("train.divergence_steps > 0", {"train.divergence_steps"},
                                   [](const JobConfig& j) { return j.train.divergence_steps > 0; });
  train("divergence_steps", &TrainSection::divergence_steps,
        "Steps in a row with a loss above its band after which the run ends with a report (exit code 1). "
        "Their state is saved as checkpoints/diverged_step_N, from which no start resumes by itself; until "
        "then no checkpoint is deleted. 0: off.")
      .between(0, max_steps);
  watch("divergence_window", &TrainSection::divergence_window,
        "Number of losses that the band is computed from: the latest that did not lie above it. Until there "
        "are so many, no loss is above the band.")
      .between(8, 1024);
  watch("divergence_band", &TrainSection::divergence_band,
        "Height of the band above the losses' median, in deviations. A deviation is 1.4826 times their "
        "median absolute deviation (for normal noise the standard deviation), 0.1 % of the median at least.")
      .above_up_to(0, 1e6);
}

void add_train(std::vector<Option>& options) {
  SectionFields<TrainSection> train(options, "train", [](JobConfig& j) -> TrainSection& { return j.train; });
  train("steps", &TrainSection::steps, "Optimizer steps of the whole run, including those before a resume.")
      .between(1, max_steps);
  train("seq_len", &TrainSection::seq_len, "Tokens of a sample.")
      .between(1, max_size)
      .required()
      .decides(Effect::data);
  train("micro_batch_size", &TrainSection::micro_batch_size, "Samples of a microbatch.")
      .between(1, max_size)
      .decides(Effect::layout);
  train("grad_accum_steps", &TrainSection::grad_accum_steps,
        "Microbatches of a step, taken by each data rank: a step sees dp_replicate * dp_shard * "
        "grad_accum_steps * micro_batch_size samples.")
      .between(1, max_size)
      .decides(Effect::layout);
  train("dtype", &TrainSection::dtype,
        "Type of weights and activations in the passes; master weights, gradients and optimizer state are "
        "fp32.")
      .refuse("fp16", "fp16 is refused: use bf16")
      .refuse("float16", "fp16 is refused: use bf16")
      .refuse("half", "fp16 is refused: use bf16");
  train(
      "recompute", &TrainSection::recompute,
      "Activations that are not saved but recomputed in the backward pass, with the same bits. none: "
      "everything is saved. cheap: the norms' outputs and the MLP's product of gate and up, which need no "
      "GEMM. selective: the norms' outputs and the MLP's inner activations. full: all but each block's "
      "input. auto: cheap on GPUs, none on CPUs; with pp_schedule = \"auto\" or \"search\", more on stages "
      "that do not fit, and less under a searched order that has room. Of stages that recompute more, "
      "microbatches that have room recompute less; where data.lengths is exact or padded, each step chooses "
      "them. A list has a word for each stage, first to last. \"full:3/cheap:2\": full for three "
      "microbatches (or sequence slices), cheap for two, and so on in turns.")
      .one_of({"auto", "none", "cheap", "selective", "full"})
      .or_runs()
      .alone_in_list("auto")
      .decides(Effect::layout);
  train("overlap_weight_gradients", &TrainSection::overlap_weight_gradients,
        "Computes a backward's weight gradients on a second GPU stream, so that they overlap with norms, "
        "SwiGLU and rotary passes of the next layer. Changes no bit. Both operands of each weight of a block "
        "are held until the next block is done. Has no effect on the CPU, nor with tp > 1.")
      .decides(Effect::layout);
  train("grad_clip", &TrainSection::grad_clip,
        "Scales gradients down to this global norm over all stages and ranks. 0: off.")
      .at_least(0);
  train("label_smoothing", &TrainSection::label_smoothing,
        "Fraction of each target that is spread evenly over the vocabulary in the training loss, as "
        "PyTorch's cross_entropy(label_smoothing) does. The validation loss stays without it.")
      .from_up_to(0, 1);
  train("max_skipped_steps", &TrainSection::max_skipped_steps,
        "Skipped steps in a row, with a non-finite loss or norm, after which one more ends the run. 0: the "
        "first ends it.")
      .between(0, max_steps);
  add_divergence(train);
  train(
      "check_weights", &TrainSection::check_weights,
      "Checks that nothing changes master weights and optimizer state between optimizer steps: checksums are "
      "taken after each step and compared before the next one and before a checkpoint. A flipped bit ends "
      "the run with its parameter's name; nothing is saved. Costs two readings of these bytes a step.");
  train("deterministic", &TrainSection::deterministic,
        "true: on GPUs the same job gives the same bits again, also on other pipeline layouts. Attention's "
        "backward adds in a fixed order, and LibTorch operators that cannot are refused. false: the fastest "
        "attention; losses differ in their last digits from run to run. CPUs always give the same bits.")
      .only_with("run.device", {"cuda"});
}

bool validates(const JobConfig& job) {
  return job.eval.interval > 0;
}

bool generates(const JobConfig& job) {
  return job.eval.generate_interval > 0;
}

bool has_messages(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job), [](const DataSource& s) { return !s.messages_key.empty(); });
}

bool has_lines(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job),
                             [](const DataSource& s) { return s.format == DataFormat::jsonl; });
}

// What [data] and [[data.sources]] say alike of one source's files. has_conditions: options that other
// formats do not know act only with data.format.
void add_files(const SectionFields<DataSource>& fields, bool has_conditions) {
  const auto with = [&](std::vector<std::string> formats) {
    return has_conditions ? fields.only_with("data.format", std::move(formats)) : fields;
  };
  const auto records = with({"jsonl", "parquet"});
  fields("format", &DataSource::format,
         "text: each byte is a token; with data.tokenizer, each file is a document. jsonl: each line is an "
         "object with a document under text_key; .gz and .zst are unpacked. parquet: each row is a document. "
         "The tokenizer turns texts into token files once (data.cache). bin: tokens of dtype without a "
         "header. llmc: llm.c's format, with a header. megatron: Megatron-LM's PREFIX.bin with PREFIX.idx, "
         "which has the tokens' type and the documents' ends. npy: NumPy's, a one-dimensional array of "
         "integers. random: no files; uniform random tokens from run.seed, for benchmarks.");
  with({"bin"})("dtype", &DataSource::dtype, "Type of a token in a headerless file.");
  records("text_key", &DataSource::text_key, "Key, or column, of a document's text.");
  records("prompt_key", &DataSource::prompt_key,
          "Key, or column, of a prompt, whose tokens add nothing to the loss. The answer is then under "
          "completion_key, not under text_key. Empty: no prompts.");
  records("completion_key", &DataSource::completion_key,
          "Key, or column, of the text after the prompt, whose tokens make the loss.");
  records("messages_key", &DataSource::messages_key,
          "Key, or column, of a conversation in place of text_key: a list of {role, content} with the "
          "roles system, user and assistant, which [data.chat] makes a text. Only the assistant's tokens "
          "make the loss, but for messages with weight = 0 or train = false. Empty: no conversations.");
  records("tokens_key", &DataSource::tokens_key,
          "Key, or column, of a list of token ids in place of text_key: a document that is tokenized "
          "already, and gets no end. Empty: texts.");
  records("labels_key", &DataSource::labels_key,
          "Key, or column, of a list beside tokens_key: for each token its own id, or -100 where it adds "
          "nothing to the loss. Empty: all tokens make the loss.");
  with({"text"})(
      "document_separator", &DataSource::document_separator,
      "Text between the documents of a file that a tokenizer reads; it belongs to neither. Empty: a "
      "file is a document.");
}

void add_data(std::vector<Option>& options) {
  SectionFields<DataSection> data(
      options, "data", [](JobConfig& j) -> DataSection& { return j.data; }, Effect::data);
  SectionFields<DataSource> source(
      options, "data", [](JobConfig& j) -> DataSource& { return j.data; }, Effect::data);
  source(
      "path", &DataSource::path,
      "What to train on, relative to the job's file: a file, a folder (its files with the format's "
      "ending: .txt, .jsonl[.gz|.zst], .parquet, .npy or .bin, by name), a pattern such as \"data/*.bin\", "
      "or a list of these, read as one stream in this order. Where [[data.sources]] are given, each source "
      "has this key and the next ones, to document_separator, with val_fraction and val_path.")
      .path()
      .required_unless("data.sources")
      .needless("format", "random");
  add_files(source, /*has_conditions=*/true);
  data("cache", &DataSection::cache,
       "Folder of the token files that are made of texts before the first step. Jobs with the same files, "
       "tokenizer and keys share them. Empty: pptrain_cache beside the first file, or in run.dir if that "
       "cannot be written.")
      .path(Names::written)
      .decides(Effect::none);
  data("add_special", &DataSection::add_special,
       "Adds the special tokens that the tokenizer puts around a text (its post_processor).");
  data("bad_lines", &DataSection::bad_lines,
       "What to do with a line of JSONL without a document: no JSON, no object, no text under its key, or a "
       "conversation that [data.chat] does not take. refuse: the run does not start. skip: such lines are "
       "left out; the log says how many, and where the first is.")
      .only_if("lines of texts: a source of format = jsonl", {"data.format"}, has_lines)
      .decides(Effect::none);
  data("max_document_tokens", &DataSection::max_document_tokens,
       "Texts, conversations and lists of tokens are truncated to so many tokens, their end included; the "
       "log says how many were. 0: none is, and a document longer than a row becomes several samples.")
      .between(0, max_size)
      .only_if("tokenized documents: data.format = jsonl or parquet, or text with data.tokenizer",
               {"data.format", "data.tokenizer"}, any_tokenized);
  data("document_end", &DataSection::document_end,
       "Id of the token that ends a document, such as a tokenizer's end of text. Rows may then hold several "
       "documents: attention stays inside each, positions restart, and no token is predicted across an end. "
       "Texts get this token at their end if they lack it, conversations and tokens_key do not. -1: for "
       "texts the tokenizer's eos_token; for token files none, so each row is a document, except with "
       "data.format = megatron.")
      .between(-1, 1 << 28)
      .only_with("data.format", {"text", "jsonl", "parquet", "bin", "llmc", "npy"});
  const auto documents =
      data.only_if("known documents: data.document_end, data.format = megatron, or a tokenizer",
                   {"data.document_end", "data.format"}, has_documents);
  documents(
      "packing", &DataSection::packing,
      "Which documents share a row of train.seq_len tokens. sequential: one after the other; with fixed "
      "lengths rows are full, and documents are cut. best_fit: those that fill rows best, uncut. none: a "
      "row is a document. If documents are not cut, a sample is a document; one longer than a row becomes "
      "several rows, each with its own attention and positions.");
  documents(
      "lengths", &DataSection::lengths,
      "Tokens of a microbatch. fixed: micro_batch_size rows of seq_len; short rows are padded. exact: its "
      "documents' tokens without padding; a step's documents are divided so that its microbatches cost "
      "about the same. padded: the tokens of the step's longest microbatch, rounded up to "
      "pad_to_multiple_of. At most micro_batch_size * seq_len, for which memory and time are predicted.");
  data("balance", &DataSection::balance,
       "How a step's documents of exact lengths are divided. microbatches: so that microbatches cost about "
       "the same; the losses then are equal on every pipeline. schedule: so that the schedule's predicted "
       "end on the slowest data rank is earliest, with small microbatches first and last; losses then differ "
       "by rounding between pipelines, schedules and predicted devices (distributed.pp_costs, but no trace). "
       "A step takes the same documents either way.")
      .only_with("data.lengths", {"exact"})
      .decides(Effect::layout);
  data("pad_to_multiple_of", &DataSection::pad_to_multiple_of,
       "A padded microbatch has a multiple of this many tokens on each context-parallel rank, unless it is "
       "full.")
      .between(1, max_size)
      .only_with("data.lengths", {"padded"});
  data("shuffle", &DataSection::shuffle,
       "true: samples in an order drawn from run.seed, new in each epoch. false: in the order of the file.");
  source("val_fraction", &DataSource::val_fraction,
         "Fraction of the tokens, at their end, that is kept for validation.")
      .from_up_to(0, 1);
  source("val_path", &DataSource::val_path,
         "Files, folders or patterns to validate on, in the same format; then val_fraction is 0.")
      .path()
      .decides(Effect::course);
  data("tokenizer", &DataSection::tokenizer,
       "Hugging Face's tokenizer.json, or a folder with one: it turns texts into tokens (or has done so for "
       "token files), and is needed for prompts, samples and generated text. Empty: the one in model.hf_dir, "
       "if there is one; data.format = \"text\" then still means bytes, which model.init = \"hf\" refuses.")
      .path()
      .decides(Effect::none);
}

void add_chat(std::vector<Option>& options) {
  SectionFields<ChatSection> chat(
      options, "data.chat", [](JobConfig& j) -> ChatSection& { return j.data.chat; }, Effect::data);
  const auto custom = chat.only_if(
      "conversations (messages_key) and template = custom", {"data.messages_key", "data.chat.template"},
      [](const JobConfig& j) { return has_messages(j) && j.data.chat.style == ChatStyle::custom; });
  chat("template", &ChatSection::style,
       "Template of conversations, whose tokens are those of transformers' apply_chat_template with the "
       "published one: chatml, llama3 (Llama 3 Instruct), mistral (Mistral 7B Instruct v0.2), gemma (Gemma 2 "
       "it) or qwen (Qwen2.5 Instruct, without tools). folder: the model's own, which lies beside the "
       "tokenizer (chat_template.jinja, or tokenizer_config.json). custom: the keys below.")
      .only_if("conversations: a source with messages_key", {"data.messages_key"}, has_messages);
  custom("bos", &ChatSection::bos,
         "Text before a conversation. Tokens that the tokenizer marks as special are recognised in the "
         "texts of a template, but not in the contents of messages.");
  custom("system_prefix", &ChatSection::system_prefix, "Text before a system message.");
  custom("system_suffix", &ChatSection::system_suffix, "Text behind a system message.");
  custom("user_prefix", &ChatSection::user_prefix, "Text before a user's message.");
  custom("user_suffix", &ChatSection::user_suffix, "Text behind a user's message.");
  custom("assistant_prefix", &ChatSection::assistant_prefix, "Text before an assistant's message.");
  custom("assistant_suffix", &ChatSection::assistant_suffix,
         "Text behind an assistant's message. Up to its first special token it makes the loss as the "
         "message does; all of it if it has none.");
  custom("default_system", &ChatSection::default_system,
         "System message of a conversation that begins with no other. Empty: none.");
  custom("system", &ChatSection::system,
         "Place of a system message. turn: where it is. user: the first message only, within the first "
         "user's turn, before its text. refuse: nowhere.");
  custom("alternate", &ChatSection::alternate,
         "Refuses conversations in which user and assistant do not take turns, the user first.");
  custom("trim", &ChatSection::trim, "Removes white space at both ends of each content.");
}

TableList data_source_tables() {
  const Access<std::vector<DataSource>> sources = [](JobConfig& j) -> std::vector<DataSource>& {
    return j.data.sources;
  };
  TableList list = make_table_list<DataSource>(
      "data.sources",
      "What to train on, of several sources mixed: a sample is of the source that is most behind its weight. "
      "Each has an order and epochs of its own, and each that has validation data is validated by itself.",
      sources);
  list.decides_by_field = true;
  SectionFields<DataSource> source(
      list.fields, list.section, [sources](JobConfig& j) -> DataSource& { return sources(j).front(); },
      Effect::data);
  source("name", &DataSource::name, "Name in messages and metrics: letters, digits, '.', '_' and '-'.")
      .required();
  source("path", &DataSource::path, "As data.path.").path().required().needless("format", "random");
  source("weight", &DataSource::weight,
         "The source gives weight / sum of weights of all samples. A sample is a row of train.seq_len "
         "tokens, or a whole document where data.packing or data.lengths keep documents whole.")
      .above_up_to(0, 1e9);
  add_files(source, /*has_conditions=*/false);
  source("val_fraction", &DataSource::val_fraction, "As data.val_fraction.").from_up_to(0, 1);
  source("val_path", &DataSource::val_path, "As data.val_path.").path().decides(Effect::course);
  return list;
}

void add_optimizer(std::vector<Option>& options) {
  SectionFields<OptimizerSection> optimizer(options, "optimizer",
                                            [](JobConfig& j) -> OptimizerSection& { return j.optimizer; });
  const auto muon = optimizer.only_with("optimizer.name", {"muon"});
  optimizer(
      "name", &OptimizerSection::name,
      "adamw; muon: Muon for the blocks' matrices, AdamW for embedding, head, norms, biases and routers; "
      "lion: use an lr 3 to 10 times below AdamW's, a weight_decay as much above, and betas [0.9, 0.99].")
      .one_of({"adamw", "muon", "lion"})
      .decides(Effect::model);
  optimizer("lr", &OptimizerSection::lr, "Highest learning rate.").at_least(0);
  optimizer("betas", &OptimizerSection::betas,
            "Decay of the first and second moments; with lion, of its direction and its moment.")
      .of_length(2)
      .from_up_to(0, 1);
  optimizer("eps", &OptimizerSection::eps, "Added to the root of the second moment.")
      .above(0)
      .only_with("optimizer.name", {"adamw", "muon"});
  optimizer("weight_decay", &OptimizerSection::weight_decay,
            "Decoupled decay, times the learning rate; none on norms and biases.")
      .at_least(0);
  muon("muon_momentum", &OptimizerSection::muon_momentum, "Decay of Muon's momentum (Nesterov's).")
      .from_up_to(0, 1);
  muon("muon_lr_scale", &OptimizerSection::muon_lr_scale,
       "Learning rate of Muon's matrices divided by lr. Their steps are scaled by 0.2 sqrt(max(rows, "
       "columns)) to the usual size of AdamW's, so that 1 works.")
      .above(0);
  muon("muon_weight_decay", &OptimizerSection::muon_weight_decay,
       "Replaces weight_decay for Muon's matrices.")
      .at_least(0);
  optimizer("post_validation", &OptimizerSection::post_validation,
            "Ranks step without waiting for the global norm and begin the next step; a step that had to be "
            "clipped or skipped is rolled back and redone, with the same bits (zero bubble's "
            "post-validation). Removes the rest of the bubble of zb_h2 and zbv if clipping is rare. Costs a "
            "second copy of master weights and optimizer state (12 bytes per parameter with adamw).")
      .decides(Effect::layout);
}

TableList optimizer_groups() {
  const Access<std::vector<OptimizerGroup>> groups = [](JobConfig& j) -> std::vector<OptimizerGroup>& {
    return j.optimizer.groups;
  };
  TableList list = make_table_list<OptimizerGroup>(
      "optimizer.groups",
      "Parameters with settings of their own. A parameter is in the first group that matches it.", groups);
  SectionFields<OptimizerGroup> group(
      list.fields, list.section, [groups](JobConfig& j) -> OptimizerGroup& { return groups(j).front(); });
  group("match", &OptimizerGroup::match,
        "Pattern for names of parameters, such as \"*.norm*\" or \"layers.0.*\", with * for any characters; "
        "or a role: matrix, embedding, head, norm, bias or router. A tied head is in the embedding's group.")
      .required();
  group("lr_scale", &OptimizerGroup::lr_scale, "Factor on the learning rate.").at_least(0);
  group("weight_decay", &OptimizerGroup::weight_decay, "Replaces weight_decay, also for norms and biases.")
      .at_least(0);
  group("frozen", &OptimizerGroup::frozen,
        "These do not learn. They have neither gradients nor optimizer state, are held in train.dtype alone, "
        "and checkpoints name where they come from (model.hf_dir or run.seed) in place of their values.");
  return list;
}

bool adapts(const JobConfig& job) {
  return job.lora.rank > 0;
}

void add_lora(std::vector<Option>& options) {
  SectionFields<LoraSection> lora(options, "lora", [](JobConfig& j) -> LoraSection& { return j.lora; });
  const auto adapter = lora.only_if("lora.rank > 0", {"lora.rank"}, adapts);
  lora("rank", &LoraSection::rank,
       "Rank of low-rank adapters (LoRA), which then alone learn: all other weights are frozen, held in "
       "train.dtype alone, and come from model.hf_dir or run.seed. Checkpoints hold the adapters. 0: none.")
      .between(0, 1 << 16)
      .decides(Effect::model);
  adapter("alpha", &LoraSection::alpha, "Adapters' outputs are multiplied by alpha / rank.")
      .above(0)
      .decides(Effect::model);
  adapter("dropout", &LoraSection::dropout, "Dropout of adapters' inputs: 0, since layers have none.")
      .at_least(0)
      .decides(Effect::model);
  adapter("targets", &LoraSection::targets,
          "Patterns for the linear layers that have an adapter, by the name of layer or weight with * "
          "for any characters: \"*.q\", \"layers.0.attn.*\". Default: all projections of attention "
          "(q, k, v, o; where it is latent q_a, q_b, kv_a, kv_b) and of dense feed-forwards (gate, "
          "up, down); experts and routers have none.")
      .decides(Effect::model);
}

void add_lr_schedule(std::vector<Option>& options) {
  SectionFields<LrScheduleSection> schedule(options, "lr_schedule",
                                            [](JobConfig& j) -> LrScheduleSection& { return j.lr_schedule; });
  const std::string name = "lr_schedule.name";
  schedule("name", &LrScheduleSection::name,
           "Course of the learning rate after the warm-up. wsd: constant, then a fall over the last part of "
           "the run.")
      .one_of({"cosine", "linear", "wsd", "constant"});
  schedule("warmup_steps", &LrScheduleSection::warmup_steps,
           "Steps of the linear rise to optimizer.lr. auto: a twentieth of train.steps, 2000 at most. A run "
           "with fewer steps never reaches it, and warns.")
      .between(0, max_steps)
      .unset_as("auto");
  schedule("min_lr_ratio", &LrScheduleSection::min_lr_ratio,
           "The last learning rate as a fraction of optimizer.lr.")
      .between(0, 1)
      .only_with(name, {"cosine", "linear", "wsd"});
  schedule("decay_fraction", &LrScheduleSection::decay_fraction,
           "Fraction of the run, at its end, in which the learning rate falls; one step at least.")
      .above_up_to(0, 1)
      .only_with(name, {"wsd"});
}

void add_checkpoint(std::vector<Option>& options) {
  SectionFields<CheckpointSection> checkpoint(
      options, "checkpoint", [](JobConfig& j) -> CheckpointSection& { return j.checkpoint; }, Effect::none);
  checkpoint(
      "interval", &CheckpointSection::interval,
      "Steps between checkpoints. 0: only by checkpoint.minutes, at the end, and when stopped by a signal.")
      .between(0, max_steps);
  checkpoint("minutes", &CheckpointSection::minutes,
             "Minutes since the last checkpoint after which one more is saved. 0: none by time.")
      .between(0, 1e6);
  checkpoint("async", &CheckpointSection::async,
             "true: checkpoints are written while training goes on. Tensors that are not yet written when "
             "the next step changes them are copied first, so a rank may need its fp32 weights and optimizer "
             "state once more in host memory. false: training waits.");
  checkpoint("keep_last_n", &CheckpointSection::keep_last_n,
             "Newest checkpoints kept; older ones are deleted. 0: all.")
      .between(0, max_steps);
  checkpoint("keep_best_n", &CheckpointSection::keep_best_n,
             "Checkpoints with the lowest validation losses that are kept besides the newest ones. An "
             "evaluation that is among the best saves a checkpoint of its step. The file checkpoints/best "
             "has the best one's name. 0: none.")
      .between(0, max_steps)
      .only_if("eval.interval > 0", {"eval.interval"}, validates);
  checkpoint("resume", &CheckpointSection::resume,
             "What the first start in run.dir begins with. none or auto: a new model. A path: a checkpoint, "
             "or a folder of checkpoints. Later starts resume from run.dir's own newest sound checkpoint, "
             "whatever this says, so that the same command always resumes. restart: moves the contents of "
             "run.dir aside, deletes nothing and starts over; but an unfinished run of this same job (its "
             "layout may differ) that began with restart is resumed.")
      .path()
      .such_as({"auto", "none", "restart"});
  checkpoint("data", &CheckpointSection::data,
             "What to do if the data or their order (data.*, train.seq_len, run.seed) differ from the "
             "checkpoint's. same: the start is refused. continue: goes on at the same sample number of the "
             "new order. restart: begins with the new order's first sample.");
}

void add_eval_and_metrics(std::vector<Option>& options) {
  SectionFields<EvalSection> eval(
      options, "eval", [](JobConfig& j) -> EvalSection& { return j.eval; }, Effect::none);
  eval("interval", &EvalSection::interval,
       "Steps between validations; one more follows the last step. 0: only that one. Jobs without validation "
       "data (data.val_fraction, data.val_path) have none.")
      .between(0, max_steps);
  eval("batches", &EvalSection::batches,
       "Validation batches, each of as many samples as a training step. 0: all of the validation data.")
      .between(0, max_steps)
      .only_if("validation data", {"data.val_fraction", "data.val_path"},
               [](const JobConfig& job) { return has_validation(job); });
  const auto samples = eval.only_if("eval.generate_interval > 0", {"eval.generate_interval"}, generates);
  eval("generate_interval", &EvalSection::generate_interval,
       "Steps between samples of generated text in the log. 0: none.")
      .between(0, max_steps);
  samples("generate_prompt", &EvalSection::generate_prompt, "Prompt of the samples.");
  samples("generate_tokens", &EvalSection::generate_tokens,
          "Tokens of a sample, drawn from the model's probabilities with run.seed.")
      .between(1, 1 << 20);
  SectionFields<MetricsSection> metrics(
      options, "metrics", [](JobConfig& j) -> MetricsSection& { return j.metrics; }, Effect::none);
  metrics("log_interval", &MetricsSection::log_interval, "Steps between lines of the log.")
      .between(1, max_steps);
  metrics("peak_tflops", &MetricsSection::peak_tflops,
          "Peak TFLOP/s of one rank's device, for mfu. 0: the data sheet's dense bf16 rate of a known GPU, "
          "or the rate of a CPU's fastest GEMM, timed at the start in at most 0.3 s. A step faster than "
          "this peak raises the peak, so mfu never exceeds 100 %.")
      .between(0.0, 1e6);
  metrics(
      "microbatch_losses", &MetricsSection::microbatch_losses,
      "Also writes the loss of each microbatch of a step, over all data-parallel ranks, to metrics.jsonl.");
  metrics("tensorboard", &MetricsSection::tensorboard,
          "Also writes the metrics of each step and evaluation to run.dir/tensorboard, as TensorBoard's "
          "event files.");
  metrics("prometheus", &MetricsSection::prometheus,
          "Address at which rank 0 serves the latest metrics to Prometheus (GET /metrics): \"HOST:PORT\", "
          "the host a numeric address, or \"PORT\" for programs of the same machine; port 0 is any free one, "
          "which the log names. Anybody who reaches it can read it. Empty: off.");
}

void add_profile(std::vector<Option>& options) {
  SectionFields<ProfileSection> profile(
      options, "profile", [](JobConfig& j) -> ProfileSection& { return j.profile; }, Effect::none);
  const auto trace = profile.only_with("profile.trace", {"true"});
  profile("trace", &ProfileSection::trace,
          "Writes a timeline of all ranks over some steps to trace.json in run.dir (for Perfetto or "
          "chrome://tracing).");
  trace("first_step", &ProfileSection::first_step,
        "First step traced, counted from 1 after each start or resume; the first is slower than the others.")
      .between(1, max_steps);
  trace("steps", &ProfileSection::steps, "Steps traced.").between(1, 1000);
}

std::vector<Option> declare_options() {
  std::vector<Option> options;
  add_run(options);
  add_model(options);
  add_rope_scaling(options);
  add_distributed(options);
  add_train(options);
  add_data(options);
  add_chat(options);
  add_optimizer(options);
  add_lora(options);
  add_lr_schedule(options);
  add_checkpoint(options);
  add_eval_and_metrics(options);
  add_profile(options);
  return options;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = declare_options();
  return table;
}

const std::vector<TableList>& table_lists() {
  static const std::vector<TableList> lists = {data_source_tables(), optimizer_groups()};
  return lists;
}

const TableList* find_table_list(std::string_view section) {
  const auto found = std::ranges::find(table_lists(), section, &TableList::section);
  return found == table_lists().end() ? nullptr : &*found;
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Option& option : options()) {
      if (result.empty() || result.back() != option.section) result.push_back(option.section);
    }
    return result;
  }();
  return names;
}

const Option* find_option(std::string_view name) {
  const auto found = std::ranges::find(options(), name, &Option::name);
  return found == options().end() ? nullptr : &*found;
}

}  // namespace pptrain::config

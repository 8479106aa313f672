// The job, as plain values: one struct per TOML section. Every field is declared to users exactly once, in
// options/ (name, range, meaning); its default is the value that it starts with here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/chat_section.h"
#include "core/config/recomputation.h"
#include "core/config/word.h"

namespace pptrain::config {

struct RunSection {
  std::string dir = "runs/default";  // metrics.jsonl, job.toml and checkpoints/ go here
  int64_t seed = 0;
  Word<Device> device = Device::cpu;
  int64_t threads = 1;        // CPU threads of each rank; part of what makes results equal to the bit
  bool force_memory = false;  // starts though the prediction does not fit the host

  bool operator==(const RunSection&) const = default;
};

// Hugging Face's config.json names. Unset sizes (0) must come from hf_dir.
struct RopeScaling {
  Word<RopeType> rope_type = RopeType::none;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
  double attention_factor = 0;  // 0: as the papers recommend
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;  // 0: not given
  double mscale_all_dim = 0;
  bool truncate = true;
  std::vector<double> short_factor = {}, long_factor = {};

  bool operator==(const RopeScaling&) const = default;
};

struct ModelSection {
  std::string arch = "llama";  // one of those in options/model.cpp
  std::string hf_dir;          // Hugging Face directory: config.json, model*.safetensors
  Word<Init> init = Init::random;
  double initializer_range = 0.02;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t vocab_size = 0;
  double rope_theta = 10000;
  RopeScaling rope_scaling;  // [model.rope_scaling]
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t max_position_embeddings = 0;  // 0: train.seq_len
  bool attention_bias = false;
  bool mlp_bias = false;
  int64_t sliding_window = 0;                                      // 0: none
  std::vector<std::string> layer_types;                            // empty: the architecture's pattern
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;  // 0: none
  int64_t query_pre_attn_scalar = 0;                               // 0: head_dim
  double rope_local_base_freq = 10000;
  double partial_rotary_factor = 1;
  std::vector<int64_t> no_rope_layers;  // empty: every fourth layer has none
  double embedding_multiplier = 1, residual_multiplier = 1, logits_scaling = 1;
  double attention_multiplier = 0;  // 0: 1 / sqrt(head_dim)
  // Latent attention.
  int64_t q_lora_rank = 0;  // 0: queries from the residual stream itself
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool use_parallel_residual = true;
  // Mixture of experts.
  bool norm_topk_prob = false;
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_intermediate_size = 0;
  double swiglu_limit = 7;
  int64_t n_group = 1, topk_group = 1;
  double routed_scaling_factor = 1;
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  double router_aux_loss_coef = 0;
  double router_z_loss_coef = 0;
  double router_bias_update_rate = 0;

  bool operator==(const ModelSection&) const = default;
};

// Transformer blocks of each stage: a word or a layout, or a list.
struct PipelineSplit {
  std::string text = "even";    // even | cost | a layout such as "1|*|*|1"; empty if `layers` is set
  std::vector<int64_t> layers;  // per stage, first to last

  bool by_cost() const { return text == "cost"; }
  bool operator==(const PipelineSplit&) const = default;
};

struct DistributedSection {
  int64_t pp = 1;
  std::optional<int64_t> dp;  // short for dp_shard; both is an error
  int64_t dp_replicate = 1;
  int64_t dp_shard = 1;  // -1, before the job is resolved: what the other axes leave of the world
  int64_t cp = 1;
  Word<ContextKind> cp_kind = ContextKind::ring;
  int64_t tp = 1;
  int64_t ep = 1;
  std::optional<bool> reshard_after_forward;  // unset: without a pipeline alone
  Word<ReduceGradients> reduce_gradients = ReduceGradients::step;
  std::string pp_schedule = "1f1b";  // a schedule's name, auto, search, or a file ending in .csv
  int64_t pp_stages_per_rank = 0;    // 0: what the schedule is made for
  PipelineSplit pp_split;
  Word<HeadPlace> pp_head = HeadPlace::last;
  int64_t pp_sequence_slices = 1;  // of a microbatch; 0: chosen with the schedule
  double pp_embedding_weight = 0;  // the embedding and the head count as this many layers in an even split
  double pp_head_weight = 0;
  std::string pp_costs;        // of auto and cost: a device's name, or a trace; empty: run.device
  double pp_memory_gb = 0;     // of auto: bytes that a rank may take; 0: the device's memory
  int64_t ranks_per_host = 0;  // 0: as the device of the costs usually has them
  double host_link_gbps = 0;   // Gb/s of a rank to other hosts; 0: as the device of the costs usually has it
  double host_latency_us = 0;  // of a message to another host; 0: likewise
  double timeout_s = 600;      // a wait for another rank that lasts longer fails the run
  double heartbeat_s = 7;      // a rank that gives no sign of life for longer is dead; 0: no heartbeats
  double start_timeout_s = 300;  // until all processes have come

  // Slices of a sequence; 1 while their number is open.
  int64_t slices() const { return pp_sequence_slices > 0 ? pp_sequence_slices : 1; }
  void settle_slices() { pp_sequence_slices = slices(); }  // not cut, if it was to be chosen
  // reshard_after_forward, or its default.
  bool reshards() const { return reshard_after_forward.value_or(pp == 1); }

  bool operator==(const DistributedSection&) const = default;
};

// The keys of the mesh's axes, outermost first: the number of ranks is the product of these.
struct AxisKey {
  std::string_view option;
  int64_t DistributedSection::*size;
};
inline constexpr std::array<AxisKey, 5> axis_keys{
    {{"distributed.pp", &DistributedSection::pp},
     {"distributed.dp_replicate", &DistributedSection::dp_replicate},
     {"distributed.dp_shard", &DistributedSection::dp_shard},
     {"distributed.cp", &DistributedSection::cp},
     {"distributed.tp", &DistributedSection::tp}}};

// One of [[train.grad_accum_schedule]]: from this step on, steps have so many microbatches.
struct BatchStep {
  int64_t from_step = 0;  // the first step of a run is 1
  int64_t grad_accum_steps = 0;

  bool operator==(const BatchStep&) const = default;
};

struct TrainSection {
  int64_t steps = 1000;
  int64_t seq_len = 0;
  int64_t micro_batch_size = 1;
  int64_t grad_accum_steps = 1;  // microbatches per step
  std::vector<BatchStep> grad_accum_schedule = {};
  Word<Dtype> dtype = Dtype::bf16;
  Word<Fp8> fp8 = Fp8::off;
  // auto | none | cheap | selective | full: one word for all stages, or one, not auto, for each
  Recomputation recompute;
  double grad_clip = 1.0;      // 0: off
  double label_smoothing = 0;  // of the training loss
  double z_loss = 0;           // of the training loss
  int64_t max_skipped_steps = 10;
  int64_t divergence_steps = 0;     // in a row with a loss above its band, after which the run stops; 0: off
  int64_t divergence_window = 100;  // losses that the band is computed from
  double divergence_band = 6;       // its width, in deviations above the median
  int64_t max_rollbacks = 0;        // of a run whose loss leaves its band; 0: it ends
  bool check_weights = false;       // that nothing changes them between optimizer steps
  bool deterministic = true;        // on a GPU: the same job gives the same bits
  bool overlap_weight_gradients = true;  // on a second stream of a GPU

  // Microbatches of a step, counted from 1.
  int64_t microbatches_of(int64_t step) const {
    int64_t count = grad_accum_steps;
    for (const BatchStep& later : grad_accum_schedule) {
      if (later.from_step <= step) count = later.grad_accum_steps;
    }
    return count;
  }

  bool operator==(const TrainSection&) const = default;
};

// One of [[data.sources]], or of [data] as the only one, which has neither name nor weight.
struct DataSource {
  std::string name;
  std::vector<std::string> path;  // files, folders and patterns
  double weight = 1;              // of its samples among those of all sources
  Word<DataFormat> format = DataFormat::text;
  Word<TokenType> dtype = TokenType::uint16;  // of a headerless .bin
  std::string text_key = "text";              // jsonl, parquet
  std::string prompt_key;                     // jsonl, parquet: with completion_key, in place of text_key
  std::string completion_key;                 //
  std::string messages_key;                   // jsonl, parquet: of a conversation, in place of text_key
  std::string tokens_key;                     // jsonl, parquet: of token ids, in place of text_key
  std::string labels_key;                     // with tokens_key
  std::string document_separator;             // text with a tokenizer; "": a file is a document
  double val_fraction = 0;                    //
  std::vector<std::string> val_path;          // of the same format

  bool operator==(const DataSource&) const = default;
};

struct DataSection : DataSource {
  std::vector<DataSource> sources = {};
  ChatSection chat;         // [data.chat]
  std::string cache;        // folder of token files made from texts; "": beside the data, or in run.dir
  bool add_special = true;  // the tokens that the tokenizer puts around a text
  Word<BadLines> bad_lines = BadLines::refuse;  // of JSONL
  int64_t max_document_tokens = 0;              // of what is tokenized; 0: no limit
  int64_t document_end = -1;  // id of the token that ends a document; -1: none, or the files' index says
  Word<Packing> packing = Packing::sequential;
  Word<Lengths> lengths = Lengths::fixed;
  Word<Balance> balance = Balance::microbatches;
  int64_t pad_to_multiple_of = 128;  // tokens, of padded
  bool shuffle = true;
  std::string tokenizer;  // tokenizer.json, or a folder with one; "": model.hf_dir's

  bool operator==(const DataSection&) const = default;
};

// One of [[optimizer.groups]]: parameters that are stepped otherwise.
struct OptimizerGroup {
  std::string match;  // a pattern for parameters' names, or a role
  double lr_scale = 1;
  std::optional<double> weight_decay = std::nullopt;  // none: as without the group
  bool frozen = false;

  bool operator==(const OptimizerGroup&) const = default;
};

struct OptimizerSection {
  std::string name = "adamw";  // adamw | muon | lion
  double lr = 3e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double muon_momentum = 0.95;
  double muon_lr_scale = 1;                                // of the matrices that Muon steps
  std::optional<double> muon_weight_decay = std::nullopt;  // of these; none: weight_decay
  std::vector<OptimizerGroup> groups = {};                 // the first that matches counts
  bool post_validation = false;  // step before the global norm is known; take it back if that was wrong
  Word<Dtype> state_dtype = Dtype::fp32;  // of the moments
  double ema_decay = 0;                   // of the average of weights; 0: there is none

  bool operator==(const OptimizerSection&) const = default;
};

struct LoraSection {
  int64_t rank = 0;  // 0: off
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {"*.q",    "*.k",   "*.v",   "*.o",    "*.gate", "*.up",
                                      "*.down", "*.q_a", "*.q_b", "*.kv_a", "*.kv_b"};

  bool operator==(const LoraSection&) const = default;
};

struct LrScheduleSection {
  std::string name = "cosine";          // cosine | linear | wsd | constant
  std::optional<int64_t> warmup_steps;  // unset, before the job is resolved: by train.steps
  double min_lr_ratio = 0.1;
  double decay_fraction = 0.1;  // wsd: the last part of the run over which the rate falls

  bool operator==(const LrScheduleSection&) const = default;
};

struct CheckpointSection {
  int64_t interval = 1000;      // steps; 0: none by steps
  double minutes = 0;           // 0: none by time
  double memory_seconds = 0;    // between copies in the host's memory; 0: none
  bool async = true;            // saves while training goes on
  int64_t keep_last_n = 3;      // 0: all
  int64_t keep_best_n = 0;      // in addition, those with the lowest validation losses
  std::string resume = "auto";  // auto | none | restart | PATH
  Word<ChangedData> data = ChangedData::same;

  bool operator==(const CheckpointSection&) const = default;
};

struct EvalSection {
  int64_t interval = 0;                // steps; 0: after the last step alone
  int64_t batches = 10;                // steps' worth of validation microbatches; 0: all
  int64_t generate_interval = 0;       // steps; 0: off
  std::string generate_prompt = "\n";  // of data.format's text
  int64_t generate_tokens = 100;

  bool operator==(const EvalSection&) const = default;
};

struct MetricsSection {
  int64_t log_interval = 10;
  double peak_tflops = 0;  // of one rank's device, for mfu; 0: known or measured
  bool microbatch_losses = false;
  bool tensorboard = false;
  std::string prometheus_file;  // NAME.prom; empty: off

  bool operator==(const MetricsSection&) const = default;
};

struct ProfileSection {
  bool trace = false;
  int64_t first_step = 2;  // of this start of the run; 1 is the first
  int64_t steps = 3;

  bool operator==(const ProfileSection&) const = default;
};

struct JobConfig {
  RunSection run;
  ModelSection model;
  DistributedSection distributed;
  TrainSection train;
  DataSection data;
  OptimizerSection optimizer;
  LoraSection lora;
  LrScheduleSection lr_schedule;
  CheckpointSection checkpoint;
  EvalSection eval;
  MetricsSection metrics;
  ProfileSection profile;

  bool operator==(const JobConfig&) const = default;
};

}  // namespace pptrain::config

#include "core/config/families.h"
#include "core/config/nearest.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace pptrain::config {
namespace {

struct Alias {
  std::string_view ours;
  std::string_view theirs;  // words in lower case, with _ for -
};

// Names in TorchTitan, Megatron-LM, nanotron, Hugging Face's TrainingArguments and config.json files, nanoGPT
// and the like. A word with a section stands for that section's key alone.
constexpr Alias keys[] = {
    {"run.dir", "output_dir out_dir save save_dir run_dir dump_folder checkpoints_path"},
    {"run.seed", "random_seed"},
    {"run.device", "device_type accelerator"},
    {"run.threads", "num_threads cpu_threads omp_num_threads"},
    {"model.arch", "architecture architectures model_type flavor"},
    {"model.hf_dir", "model_name_or_path hf_model hf_path hf_assets_path pretrained"},
    {"model.initializer_range", "init_std init_method_std"},
    {"model.hidden_size", "dim d_model n_embd embed_dim hidden_dim model_dim"},
    {"model.intermediate_size", "ffn_hidden_size ffn_dim d_ff mlp_dim"},
    {"model.max_position_embeddings", "n_positions n_ctx"},
    {"model.num_hidden_layers", "n_layers n_layer num_layers layers depth"},
    {"model.num_attention_heads", "n_heads n_head num_heads heads"},
    {"model.num_key_value_heads", "n_kv_heads num_kv_heads num_query_groups"},
    {"model.head_dim", "kv_channels head_size"},
    {"model.vocab_size", "padded_vocab_size n_vocab"},
    {"model.rope_theta", "rotary_base rope_base"},
    {"model.rms_norm_eps", "norm_eps norm_epsilon layernorm_epsilon layer_norm_eps"},
    {"model.tie_word_embeddings", "tie_embeddings tied_embeddings weight_tying enable_weight_tying"},
    {"model.attention_bias", "add_qkv_bias"},
    {"model.num_experts", "n_experts num_moe_experts num_local_experts"},
    {"model.num_experts_per_tok", "top_k moe_router_topk num_experts_per_token"},
    {"model.moe_intermediate_size", "moe_ffn_hidden_size"},
    {"model.router_aux_loss_coef", "moe_aux_loss_coeff"},
    {"model.router_z_loss_coef", "moe_z_loss_coeff"},
    {"model.router_bias_update_rate", "moe_router_bias_update_rate load_balance_coeff"},
    {"distributed.pp",
     "pp_size pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size num_stages"},
    {"distributed.tp", "tp_size tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size"},
    {"distributed.dp", "dp_size data_parallel_size"},
    {"distributed.dp_replicate",
     "data_parallel_replicate_degree ddp data_parallel_replicate_size dp_replicate_size"},
    {"distributed.dp_shard",
     "data_parallel_shard_degree fsdp zero_stage data_parallel_shard_size dp_shard_size "
     "use_distributed_optimizer"},
    {"distributed.cp",
     "cp_size context_parallel_size context_parallel_degree ringattn_parallel_size ulysses_parallel_size"},
    {"distributed.cp_kind", "cp_comm_type context_parallel_rotate_method"},
    {"distributed.ep", "ep_size expert_parallel_size expert_parallel_degree expert_model_parallel_size"},
    {"distributed.reshard_after_forward", "fsdp_reshard_after_forward"},
    {"distributed.pp_schedule",
     "pipeline_parallel_schedule pipeline_schedule distributed.schedule pp_engine "
     "pipeline_parallel_schedule_csv pp_stage_type"},
    {"distributed.pp_stages_per_rank",
     "virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank virtual_stages "
     "stages_per_rank num_stages_per_rank num_layers_per_virtual_pipeline_stage"},
    {"distributed.pp_split",
     "layers_per_stage pipeline_model_parallel_layout pipeline_parallel_split_points "
     "module_fqns_per_model_part pipeline_module_split split_spec split_points pp_split_points "
     "pipeline_parallel_layers_per_stage"},
    {"distributed.timeout_s", "distributed_timeout_minutes train_timeout_seconds timeout"},
    {"train.steps",
     "train.interval max_steps train_steps num_steps total_steps training_steps train_iters max_iters "
     "iterations"},
    {"train.seq_len",
     "sequence_length seq_length seqlen max_seq_len max_seq_length context_length block_size "
     "sample_packing_sequence_len"},
    {"train.micro_batch_size",
     "batch_size pipeline_parallel_microbatch_size per_device_train_batch_size mbs"},
    {"train.grad_accum_steps",
     "local_batch_size gradient_accumulation_steps batch_accumulation_per_replica accumulation_steps "
     "grad_accum global_batch_size gbs microbatches num_microbatches n_microbatches pp_microbatches"},
    {"train.dtype", "precision mixed_precision mixed_precision_param param_dtype torch_dtype bf16"},
    {"train.fp8",
     "fp8_format fp8_recipe fp8_mode enable_fp8 use_fp8 float8 enable_float8 enable_float8_linear "
     "float8_recipe_name recipe_name model.converters quantize enable_fsdp_float8_all_gather "
     "precompute_float8_dynamic_scale_for_fsdp filter_fqns fp8_param_gather fp8_margin fp8_amax_history_len "
     "fp8_amax_compute_algo"},
    {"train.z_loss", "zloss z_loss_coef z_loss_weight z_loss_multiplier softmax_auxiliary_loss"},
    {"train.grad_clip",
     "max_norm max_grad_norm clip_grad clip_grad_norm gradient_clipping gradient_clip_val"},
    {"train.recompute",
     "activation_checkpoint activation_checkpointing gradient_checkpointing enable_gradient_checkpointing "
     "ac_mode recompute_granularity recompute_activations recompute_layer activation_checkpoint_mode"},
    {"data.lengths", "pp_variable_seq_lengths"},
    {"data.path",
     "dataset dataset_path dataset_folder data_path data_dir train_path train_data train_data_path"},
    {"data.val_path", "valid_data_path val_data validation_path"},
    {"data.val_fraction", "data.split validation_fraction"},
    {"data.text_key", "text_column text_field dataset_text_field"},
    {"data.cache", "data_cache_path"},
    {"data.document_end", "eod_token eos_token_id eos_id"},
    {"data.packing", "packing_strategy sample_packing_method"},
    {"data.dtype", "token_dtype token_size"},
    {"optimizer.lr", "learning_rate max_lr peak_lr"},
    {"optimizer.name", "optim optimizer_type"},
    {"optimizer.betas", "adam_beta1 adam_beta2 beta1 beta2"},
    {"optimizer.eps", "adam_eps adam_epsilon epsilon"},
    {"optimizer.weight_decay", "wd"},
    {"optimizer.muon_momentum", "momentum"},
    {"optimizer.groups", "param_groups"},
    {"optimizer.state_dtype", "exp_avg_dtype exp_avg_sq_dtype optimizer_dtype state_bits"},
    {"optimizer.ema_decay", "ema ema_beta use_ema"},
    {"lr_schedule.name", "lr_scheduler lr_scheduler_type lr_decay_style lr_decay_type decay_type"},
    {"lr_schedule.decay_fraction", "lr_schedule.decay_ratio"},
    {"lr_schedule.warmup_steps",
     "warmup warmup_iters lr_warmup_iters lr_warmup_steps num_warmup_steps warmup_ratio"},
    {"lr_schedule.min_lr_ratio", "min_lr min_lr_factor lr_min min_decay_lr"},
    {"checkpoint.interval", "checkpoint.steps checkpoint_interval save_steps save_interval save_every"},
    {"checkpoint.async", "async_mode async_save"},
    {"checkpoint.keep_last_n", "save_total_limit keep_latest_k"},
    {"checkpoint.resume", "load init_from initial_load_path resume_from_checkpoint resume_checkpoint_path"},
    {"eval.batches", "eval.steps eval_iters eval_batches limit_val_batches"},
    {"eval.interval", "eval.freq eval_steps eval_interval val_interval val_check_interval"},
    {"metrics.log_interval", "logging_steps log_freq log_every iteration_step_info_interval"},
    {"metrics.peak_tflops", "peak_flops"},
    {"metrics.tensorboard", "enable_tensorboard"},
    {"metrics.prometheus_file", "metrics.prometheus"},
    {"profile.trace", "enable_profiling"},
    {"profile.first_step", "profile_step_start"},
};

constexpr Alias section_names[] = {
    {"run", "general job system"},
    {"distributed", "parallelism parallel parallel_dims mesh"},
    {"train", "training trainer tokens"},
    {"data", "dataset datasets dataloader data_stages"},
    {"optimizer", "optim"},
    {"lr_schedule", "scheduler lr_scheduler learning_rate_scheduler"},
    {"checkpoint", "checkpoints checkpointing"},
    {"eval", "validation evaluation"},
    {"metrics", "logging"},
    {"profile", "profiling profiler"},
    {"model.rope_scaling", "model.rope rope_scaling"},
};

// Aliases of values: "option=value".
constexpr Alias values[] = {
    {"run.device=cuda", "gpu nvidia cuda:0"},
    {"train.dtype=bf16", "bfloat16 torch.bfloat16 bf bf16_mixed"},
    {"train.dtype=fp32", "float32 torch.float32 float f32 tf32"},
    {"train.fp8=rowwise", "true fp8 e4m3 row rowwise_with_gw_hp"},
    {"train.fp8=off", "false none no bf16"},
    {"train.recompute=full", "block true uniform"},
    {"train.recompute=none", "false off"},
    {"optimizer.name=adamw", "adam adamw_torch adamw_torch_fused"},
    {"lr_schedule.name=cosine", "cos cosine_with_min_lr"},
    {"lr_schedule.name=wsd", "warmup_stable_decay"},
    {"lr_schedule.name=constant", "constant_with_warmup"},
    {"data.format=text", "txt bytes"},
    {"data.format=llmc", "llm.c"},
    {"data.format=bin", "binary raw"},
    {"data.dtype=uint16", "u16"},
    {"data.dtype=uint32", "u32"},
    {"distributed.cp_kind=ring", "p2p"},
    {"distributed.cp_kind=ulysses", "a2a alltoall"},
    {"model.init=hf", "pretrained huggingface"},
};

// The name whose `theirs` has this word, without `beginning`, with which it must begin; empty if there is
// none.
std::string find(std::span<const Alias> table, std::string_view word, std::string_view beginning = "") {
  for (const auto& [ours, theirs] : table) {
    if (ours.starts_with(beginning) && has_word(theirs, word))
      return std::string(ours.substr(beginning.size()));
  }
  return "";
}

std::string normal(std::string_view name) {
  std::string result = to_lower(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

}  // namespace

std::string alias_of_key(std::string_view section, std::string_view key) {
  const std::string name = normal(key);
  const std::string here = find(keys, normal(section) + "." + name);
  return here.empty() ? find(keys, name) : here;
}

std::string alias_of_section(std::string_view name) {
  return find(section_names, normal(name));
}

std::string alias_of_value(std::string_view option, std::string_view value) {
  const std::string word = normal(value);
  if (option != "model.arch") return find(values, word, std::string(option) + "=");
  const auto family =
      std::ranges::find_if(families(), [&](const Family& f) { return has_word(f.other_names, word); });
  return family == families().end() ? "" : std::string(family->name);
}

}  // namespace pptrain::config

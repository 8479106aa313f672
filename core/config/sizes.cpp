#include "core/config/families.h"
#include "core/config/validate.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/checked.h"

namespace pptrain::config {
namespace {

constexpr int64_t max_int = std::numeric_limits<int>::max();
constexpr int64_t max_step_tokens = int64_t{1} << 53;  // all doubles hold it exactly
constexpr int64_t max_actions = int64_t{1} << 26;      // of one kind; an action takes some tens of bytes
constexpr int64_t max_parameters = int64_t{1} << 50;
constexpr int64_t max_tensors = int64_t{1} << 24;
constexpr int64_t max_work = int64_t{1} << 60;  // bytes of a microbatch's activations, of scores

struct Factor {
  std::string_view option;
  int64_t size;
};

std::string_view key_of(std::string_view option) {
  return option.substr(option.rfind('.') + 1);
}

Checked product(std::span<const Factor> factors) {
  Checked result = 1;
  for (const Factor& factor : factors) result = result * std::max<int64_t>(factor.size, 1);
  return result;
}

// "seq_len = 16777216 x micro_batch_size = 16777216"; factors of 1 are left out.
std::string describe(std::span<const Factor> factors) {
  std::vector<std::string> words;
  for (const Factor& factor : factors) {
    if (factor.size > 1) words.push_back(fmt::format("{} = {}", key_of(factor.option), factor.size));
  }
  return fmt::format("{}", fmt::join(words, " x "));
}

// The largest factor is the one to change.
bool check(Document& document, std::vector<Factor> factors, int64_t limit, std::string_view what) {
  if (product(factors).fits(limit)) return true;
  const std::string text = fmt::format("{} are more than {}, the most {}", describe(factors), limit, what);
  std::ranges::stable_sort(factors, std::greater(), &Factor::size);
  document.report_conflict({factors.front().option, factors.at(1).option}, text);
  return false;
}

bool is_dp_shard(const AxisKey& axis) {
  return axis.size == &DistributedSection::dp_shard;
}

Factor dp_shard(const DistributedSection& d) {
  return {d.dp ? "distributed.dp" : "distributed.dp_shard", d.dp.value_or(d.dp_shard)};
}

bool check_ranks(Document& document) {
  const DistributedSection& d = document.job.distributed;
  std::vector<Factor> axes;
  for (const AxisKey& axis : axis_keys)
    axes.push_back(is_dp_shard(axis) ? dp_shard(d) : Factor{axis.option, d.*axis.size});
  return check(document, std::move(axes), max_int, "ranks that a job can have");
}

bool check_tokens(Document& document) {
  const JobConfig& job = document.job;
  const DistributedSection& d = job.distributed;
  const Factor rows{"train.micro_batch_size", job.train.micro_batch_size};
  const Factor length{"train.seq_len", job.train.seq_len};
  const Factor microbatches{"train.grad_accum_steps", job.train.grad_accum_steps};
  return check(document, {rows, length}, max_int, "tokens that a microbatch can have") &&
         check(document,
               {rows, length, microbatches, {"distributed.dp_replicate", d.dp_replicate}, dp_shard(d)},
               max_step_tokens, "tokens that a step can have") &&
         check(document,
               {microbatches,
                {"distributed.pp", d.pp},
                {"distributed.pp_stages_per_rank", d.pp_stages_per_rank}},
               max_actions, "forward passes that a schedule can list");
}

bool is_sparse(const ModelSection& model) {
  return model.num_experts > 0;
}

int64_t kv_heads(const ModelSection& model) {
  return model.num_key_value_heads > 0 ? model.num_key_value_heads : model.num_attention_heads;
}

int64_t head_dim(const ModelSection& model) {
  if (model.head_dim > 0) return model.head_dim;
  return model.num_attention_heads > 0 ? model.hidden_size / model.num_attention_heads : 0;
}

int64_t expert_width(const ModelSection& model) {
  return std::max(model.moe_intermediate_size, model.intermediate_size);
}

int64_t learned_positions(const ModelSection& model) {
  return has_rotary_embeddings(model) ? 0 : model.max_position_embeddings;
}

// At least the model's parameters: every layer counts as if it had an MLP and experts.
Checked parameters(const ModelSection& m) {
  const Checked hidden = m.hidden_size;
  const Checked heads = Checked(2) * (Checked(m.num_attention_heads) + kv_heads(m)) * head_dim(m);
  const Checked experts = Checked(m.num_experts) * (Checked(3) * expert_width(m) + 1);
  const Checked inner = Checked(3) * (Checked(m.intermediate_size) + m.shared_expert_intermediate_size);
  const Checked dims = Checked(m.qk_nope_head_dim) + m.qk_rope_head_dim + m.v_head_dim;
  const Checked latent = (Checked(m.q_lora_rank) + m.kv_lora_rank) * (hidden + m.num_attention_heads * dims);
  const Checked biases = heads + inner + Checked(8) * hidden + m.num_experts;
  return Checked(m.num_hidden_layers) * (hidden * (heads + inner + experts) + latent + biases) +
         (Checked(2) * m.vocab_size + learned_positions(m)) * hidden + hidden;
}

Checked tensors(const ModelSection& m) {
  return Checked(m.num_hidden_layers) * (Checked(24) + Checked(6) * m.num_experts);
}

// At least the bytes of what a microbatch's passes keep and move, all layers on one rank: some fp32 tensors
// of each width.
Checked activation_bytes(const JobConfig& job) {
  const ModelSection& m = job.model;
  const int64_t chosen = is_sparse(m) ? std::max<int64_t>(m.num_experts_per_tok, 1) : 1;
  const Checked tokens = Checked(job.train.micro_batch_size) * job.train.seq_len;
  const Checked width = Checked(m.hidden_size) * (Checked(2) + chosen) +
                        (Checked(m.num_attention_heads) + kv_heads(m)) * head_dim(m) +
                        Checked(expert_width(m)) * chosen + m.num_experts;
  return Checked(64) * tokens * (Checked(m.num_hidden_layers) * width + m.vocab_size);
}

// The same of one layer's scores, were they all there at once.
Checked score_bytes(const JobConfig& job) {
  return Checked(16) * job.train.micro_batch_size * job.train.seq_len * job.train.seq_len *
         job.model.num_attention_heads;
}

// Attention's operations of a token, over all layers.
Checked attention_work(const JobConfig& job) {
  const ModelSection& m = job.model;
  return Checked(m.num_hidden_layers) * job.train.seq_len * m.num_attention_heads * head_dim(m);
}

std::string describe(const ModelSection& m) {
  return fmt::format(
      "num_hidden_layers = {}, hidden_size = {}, intermediate_size = {}, num_attention_heads = {}, head_dim "
      "= {}, vocab_size = {}{}",
      m.num_hidden_layers, m.hidden_size, m.intermediate_size, m.num_attention_heads, head_dim(m),
      m.vocab_size, is_sparse(m) ? fmt::format(", num_experts = {}", m.num_experts) : "");
}

bool check_model(Document& document) {
  const ModelSection& m = document.job.model;
  if (!parameters(m).fits(max_parameters)) {
    document.report_conflict({"model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
                              "model.num_attention_heads", "model.head_dim", "model.vocab_size",
                              "model.num_experts", "model.moe_intermediate_size", "model.hf_dir"},
                             fmt::format("{} are more than {} parameters, the most that a model can have",
                                         describe(m), max_parameters));
    return false;
  }
  if (tensors(m).fits(max_tensors)) return true;
  document.report_conflict({"model.num_experts", "model.num_hidden_layers", "model.hf_dir"},
                           fmt::format("num_hidden_layers = {} of num_experts = {} are more than {} tensors, "
                                       "the most that a model can have",
                                       m.num_hidden_layers, m.num_experts, max_tensors));
  return false;
}

bool check_work(Document& document) {
  const JobConfig& job = document.job;
  if (activation_bytes(job).fits(max_work) && score_bytes(job).fits(max_work) &&
      attention_work(job).fits(max_work)) {
    return true;
  }
  document.report_conflict(
      {"train.micro_batch_size", "train.seq_len", "model.hidden_size", "model.num_hidden_layers",
       "model.num_attention_heads", "model.vocab_size", "model.hf_dir"},
      fmt::format("a microbatch of micro_batch_size = {} x seq_len = {} tokens, with {}, computes more than "
                  "{} bytes, the most that a microbatch can",
                  job.train.micro_batch_size, job.train.seq_len, describe(job.model), max_work));
  return false;
}

}  // namespace

int64_t ranks_beside_dp_shard(const DistributedSection& d) {
  Checked ranks = 1;
  for (const AxisKey& axis : axis_keys) {
    if (!is_dp_shard(axis)) ranks = ranks * d.*axis.size;
  }
  return ranks.fits(max_int) ? ranks.value() : 0;
}

bool check_products(Document& document) {
  const bool ranks = check_ranks(document), tokens = check_tokens(document), model = check_model(document);
  return ranks && tokens && model && check_work(document);
}

}  // namespace pptrain::config

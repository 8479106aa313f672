#include "core/config/families.h"
#include "core/config/validate.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/config/nearest.h"

namespace pptrain::config {
namespace {

// Tensor-parallel ranks shard heads, the MLP's inner width, vocabulary and rows. They do not shard experts.
void check_tensor_parallel(const JobConfig& job, const ReportConflict& report_conflict) {
  const ModelSection& model = job.model;
  const int64_t tp = job.distributed.tp;
  if (tp <= 1) return;
  const auto report = [&](std::string_view option, const std::string& problem) {
    report_conflict({"distributed.tp", option, "model.hf_dir"}, fmt::format("tp = {} {}", tp, problem));
  };
  if (model.num_attention_heads % tp != 0) {
    report("model.num_attention_heads",
           fmt::format("does not divide num_attention_heads = {}", model.num_attention_heads));
  }
  const int64_t kv_heads = model.num_key_value_heads;
  if (kv_heads > 0 && kv_heads % tp != 0 && tp % kv_heads != 0) {
    report("model.num_key_value_heads",
           fmt::format("neither divides num_key_value_heads = {} nor is a multiple of it", kv_heads));
  }
  if (has_dense_layers(model) && model.intermediate_size % tp != 0) {
    report("model.intermediate_size",
           fmt::format("does not divide intermediate_size = {}", model.intermediate_size));
  }
  if (const int64_t shared = model.shared_expert_intermediate_size; shared % tp != 0) {
    report("model.shared_expert_intermediate_size",
           fmt::format("does not divide shared_expert_intermediate_size = {}", shared));
  }
  if (model.vocab_size > 0 && model.vocab_size < tp) {
    report("model.vocab_size", fmt::format("is more than vocab_size = {}", model.vocab_size));
  }
  if (const Family* family = find_family(model.arch); family != nullptr && family->whole_qk_norm) {
    report(
        "model.arch",
        fmt::format("cannot share out {}'s norms, each of which takes all heads of q or of k: use other axes",
                    family->name));
  }
  const int64_t tokens =
      job.train.micro_batch_size * job.train.seq_len / std::max<int64_t>(1, job.distributed.cp);
  if (tokens < tp) {
    report_conflict({"distributed.tp", "train.seq_len", "train.micro_batch_size"},
                    fmt::format("tp = {} is more than the {} tokens of a rank's microbatch", tp, tokens));
  }
}

void check_experts(const JobConfig& job, const ReportConflict& report) {
  const int64_t ep = job.distributed.ep, experts = job.model.num_experts;
  if (ep == 1) return;
  if (experts == 0) {
    report({"distributed.ep", "model.num_experts", "model.arch"},
           fmt::format("ep = {} shares out experts, but this model has none", ep));
  } else if (experts % ep != 0) {
    report({"distributed.ep", "model.num_experts", "model.hf_dir"},
           fmt::format("num_experts = {} is not divisible by ep = {}", experts, ep));
  }
}

// Context-parallel ranks shard each row in equal slices; with Ulysses they also shard each tensor-parallel
// rank's heads.
void check_context(const JobConfig& job, const ReportConflict& report) {
  const DistributedSection& d = job.distributed;
  const int64_t seq_len = job.train.seq_len, heads = job.model.num_attention_heads;
  if (d.cp <= 1 || d.tp < 1) return;
  const bool ring = d.cp_kind == ContextKind::ring;
  if (const int64_t pieces = ring ? 2 * d.cp : d.cp; seq_len % pieces != 0) {
    report({"distributed.cp", "train.seq_len"},
           fmt::format("seq_len = {} is not divisible by {} = {}: cp_kind = \"{}\" cuts each row into as "
                       "many equal pieces",
                       seq_len, ring ? "2 * cp" : "cp", pieces, d.cp_kind.text));
  }
  if (!ring && heads % d.tp == 0 && heads / d.tp % d.cp != 0) {
    report({"distributed.cp", "model.num_attention_heads"},
           fmt::format("cp_kind = \"ulysses\" shares out heads, but num_attention_heads / tp = {} is not "
                       "divisible by cp = {}: take another cp, or cp_kind = \"ring\"",
                       heads / d.tp, d.cp));
  }
}

// Each rank has some of the vocabulary.
void check_spread_head(const JobConfig& job, const ReportConflict& report) {
  const DistributedSection& d = job.distributed;
  const int64_t vocab = job.model.vocab_size, ranks = d.pp * std::max<int64_t>(1, d.tp);
  if (d.pp_head != HeadPlace::spread || vocab == 0 || vocab >= ranks) return;
  report({"distributed.pp_head", "model.vocab_size"},
         fmt::format("pp_head = \"spread\" shares out {} tokens to {} ranks", vocab, ranks));
}

// What slices of sequences do not go with.
void check_sequence_slices(const JobConfig& job, const ReportConflict& report) {
  const DistributedSection& d = job.distributed;
  const std::string schedule = to_lower(d.pp_schedule);
  const auto refuse = [&](std::string_view option, std::string_view why) {
    report({"distributed.pp_sequence_slices", option},
           fmt::format("pp_sequence_slices = {} {}", d.pp_sequence_slices, why));
  };
  const bool is_open = schedule == "auto" || schedule == "search";
  if (d.pp_sequence_slices == 0 && !is_open)
    refuse("distributed.pp_schedule",
           "is chosen with the schedule: give a number, or pp_schedule = \"auto\" or \"search\"");
  if (d.pp_sequence_slices == 1 || (d.pp_sequence_slices == 0 && !is_open)) return;
  if (d.cp > 1) refuse("distributed.cp", "cuts lists that cp ranks share out already: use cp = 1");
  const int64_t tokens = job.train.micro_batch_size * job.train.seq_len;
  if (tokens < d.pp_sequence_slices * std::max<int64_t>(1, d.tp))
    refuse("train.seq_len", fmt::format("is too many for the {} tokens of a microbatch", tokens));
}

}  // namespace

void check_layout(const JobConfig& job, const ReportConflict& report) {
  check_tensor_parallel(job, report);
  check_experts(job, report);
  check_context(job, report);
  check_spread_head(job, report);
  check_sequence_slices(job, report);
}

bool has_dense_layers(const ModelSection& model) {
  if (has_experts_of_mlp_width(model)) return false;
  return !takes(model, "num_experts") || model.decoder_sparse_step > 1 || !model.mlp_only_layers.empty();
}

}  // namespace pptrain::config

#include "app/resolve/job_checks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/data/text_codec.h"
#include "app/forecast/costs.h"
#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/config/data_sources.h"
#include "core/config/job_paths.h"
#include "core/optim/groups.h"
#include "core/text/tokenizer/unicode.h"
#include "models/learning.h"
#include "models/transformer_stage.h"
#include "parallel/comm/dry/dry_communicator.h"

namespace pptrain::app {

namespace {

void check_learning(const config::JobConfig& job, const models::ModelConfig& model,
                    const config::ReportConflict& report) {
  if (job.optimizer.groups.empty() && job.lora.rank == 0) return;
  try {
    models::TransformerStage whole(model, models::whole_model(model));
    const std::vector<const nn::ParameterSpec*> specs = whole.parameters().specs();
    for (const auto& [group, text] : optim::check_groups(job.optimizer.groups, specs))
      report({fmt::format("optimizer.groups[{}].match", group)}, text);
    if (job.lora.rank > 0) {
      for (const auto& [target, text] : models::check_targets(job.lora, specs))
        report({"lora.targets"}, text);
    } else if (std::ranges::all_of(specs, &nn::ParameterSpec::frozen)) {
      report({"optimizer.groups"}, "every parameter is frozen: nothing would learn");
    }
  } catch (const UsageError& error) {
    report({"optimizer.groups"}, error.what());
  }
}

void check_heads(const config::JobConfig& job, const models::ModelConfig& model,
                 const config::ReportConflict& report) {
  if (job.run.device == config::Device::cpu) return;
  const std::string why = why_no_attention(job, model);
  if (why.empty()) return;
  report({"model.head_dim", "model.num_attention_heads", "model.hidden_size", "model.hf_dir", "run.device",
          "train.dtype"},
         why);
}

void check_fp8(const config::JobConfig& job, const models::ModelConfig& model,
               const config::ReportConflict& report) {
  if (!model.fp8) return;
  if (model.fp8_weight_gradients && job.run.device == config::Device::cuda)
    report({"train.fp8", "run.device"},
           "\"rowwise_all\" is for CPUs: weight gradients in FP8 are not built for GPUs. Use \"rowwise\"");
  const auto tp = comm::make_dry(kernels::Wire::tp, 0, static_cast<int>(job.distributed.tp));
  try {
    models::TransformerStage declared(model, models::whole_model(model),
                                      models::make_stage_parallelism({.tp = tp.get()}));
  } catch (const UsageError& error) {
    report({"train.fp8", "distributed.tp"}, error.what());
  }
}

void check_samples(const config::JobConfig& job, const models::ModelConfig& model,
                   const config::ReportConflict& report) {
  const config::EvalSection& eval = job.eval;
  if (eval.generate_interval == 0) return;
  std::shared_ptr<const TextCodec> codec;
  try {
    codec = make_text_codec(job);
  } catch (const Error& error) {
    return report({"data.tokenizer", "model.hf_dir"}, error.what());
  }
  if (!codec) {
    return report({"eval.generate_interval", "data.format"},
                  fmt::format("samples need to know the text of tokens, which data.format = \"{}\" does not "
                              "say: give data.tokenizer, or leave generate_interval = 0",
                              config::data_sources(job).front().format.text));
  }
  const std::vector<int64_t> prompt = codec->encode(eval.generate_prompt);
  if (prompt.empty()) {
    return report({"eval.generate_prompt", "eval.generate_interval"},
                  "the prompt is empty: the model goes on from one token at least");
  }
  const auto tokens = static_cast<int64_t>(prompt.size());
  if (tokens + eval.generate_tokens - 1 > model.longest_text()) {
    report({"eval.generate_tokens", "eval.generate_prompt", "model.max_position_embeddings"},
           fmt::format("generate_tokens = {} behind a prompt of {} tokens is beyond the model's {} positions "
                       "(max_position_embeddings, which is seq_len where it is not given): {} at most",
                       eval.generate_tokens, tokens, model.longest_text(),
                       std::max<int64_t>(0, model.longest_text() - tokens + 1)));
  }
}

}  // namespace

void check_job(const PlanBase& base, const config::ReportConflict& report) {
  check_learning(base.job, base.model, report);
  check_heads(base.job, base.model, report);
  check_fp8(base.job, base.model, report);
  check_samples(base.job, base.model, report);
}

void report_bad_paths(const config::JobConfig& job, const config::ReportConflict& report) {
  const std::string toml = config::to_toml(config::with_absolute_paths(job));
  const size_t bad = tokenizer::valid_utf8_prefix(toml);
  if (bad == toml.size()) return;
  const size_t begin = toml.rfind('\n', bad) + 1;
  report({"run.dir"}, fmt::format("{}: the path is no UTF-8 text, which checkpoints need: rename its folder",
                                  toml.substr(begin, toml.find('\n', bad) - begin)));
}

void report_gpu_blocks(const PlanBase& plan, const config::ReportConflict& report) {
  if (plan.job.run.device == config::Device::cpu) return;
  const mesh::GpuBlocks blocks = gpu_blocks(plan);
  if (blocks.fit()) return;
  report({"distributed.pp", "distributed.pp_head", "distributed.cp", "run.device"},
         fmt::format("NCCL may have {} thread blocks on a GPU. Links between ranks would take {} of them, "
                     "which leaves too few for {} groups: kernels that do not fit together may wait for each "
                     "other for ever. Use fewer ranks along pp or cp, or distributed.pp_head = \"last\"",
                     mesh::GpuBlocks::most, blocks.links, blocks.groups));
}

}  // namespace pptrain::app

#include "app/resolve/job_checks.h"

#include <spdlog/fmt/fmt.h>

#include <string>

#include "app/forecast/costs.h"
#include "app/plan/stage_recompute.h"
#include "core/base/error.h"
#include "core/optim/groups.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

void report_groups(const config::JobConfig& job, const models::ModelConfig& model,
                   const config::ReportConflict& report) {
  if (job.optimizer.groups.empty()) return;
  models::TransformerStage whole(
      model, {.end_layer = static_cast<int>(model.layers), .embedding = true, .head = true});
  for (const auto& [group, text] : optim::check_groups(job.optimizer.groups, whole.parameters().specs()))
    report({fmt::format("optimizer.groups[{}].match", group)}, text);
}

void report_heads(const config::JobConfig& job, const models::ModelConfig& model,
                  const config::ReportConflict& report) {
  if (job.run.device == "cpu") return;
  const std::string why = why_no_attention(job, model);
  if (why.empty()) return;
  report({"model.head_dim", "model.num_attention_heads", "model.hidden_size", "model.hf_dir", "run.device",
          "train.dtype"},
         why);
}

void report_recompute(const config::JobConfig& job, std::optional<int> stages,
                      const config::ReportConflict& report) {
  try {
    check_recompute_words(job.train.recompute);
  } catch (const UsageError& error) {
    report({"train.recompute"}, error.what());
    return;
  }
  if (!stages) return;
  try {
    check_recompute(job.train.recompute, *stages);
  } catch (const UsageError& error) {
    report({"train.recompute", "distributed.pp_stages_per_rank", "distributed.pp"}, error.what());
  }
}

}  // namespace pptrain::app

// The options of [eval].
#include <vector>

#include "core/config/data_sources.h"
#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

bool generates(const JobConfig& job) {
  return job.eval.generate_interval > 0;
}

}  // namespace

void add_eval(std::vector<Option>& options) {
  SectionFields<EvalSection> eval(
      options, "eval", [](JobConfig& j) -> EvalSection& { return j.eval; }, Effect::none);
  eval("interval", &EvalSection::interval,
       "Steps between validations; the last step is followed by another one. 0: only that one. Jobs without "
       "validation data (data.val_fraction, data.val_path) have none.")
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
}

}  // namespace pptrain::config

// Samples of generated text in the log of a training run.
#pragma once

#include <cstdint>
#include <memory>

#include "app/generate/generator.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"

namespace pptrain::app {

class SampleLog {
 public:
  // Both must outlive it.
  SampleLog(RunContext& context, RankModel& model);

  // Generates eval.generate_tokens behind eval.generate_prompt with the model's weights as they are, and logs
  // the text on rank 0. The random numbers are the same in every step. Nothing that training reads changes.
  // Collective.
  void log(int64_t step);

 private:
  RunContext& context_;
  std::shared_ptr<const TextCodec> codec_;
  StopRules stop_;
  Generator generator_;
};

}  // namespace pptrain::app

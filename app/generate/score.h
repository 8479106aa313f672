// Log-probabilities of given texts, and logits of given tokens, through the pipeline of generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"

namespace pptrain::app {

// A prompt of at least one token, and tokens that may follow it.
struct Continuation {
  std::vector<int64_t> prompt;
  std::vector<int64_t> completion;
};

struct Score {
  double log_probability = 0;  // of the completion's tokens together, natural logarithm
  bool greedy = true;          // each of them is the most probable one at its place
};

// The scores of all, the same on every rank. `in_flight`: sequences per pass. Collective. Throws
// UsageError for one that the model does not take.
std::vector<Score> score(RunContext& context, RankModel& model,
                         const std::vector<Continuation>& continuations, int64_t in_flight);

// Throws the UsageErrors of score().
void check_continuations(const models::ModelConfig& model, const std::vector<Continuation>& continuations);

// float32 [tokens, vocab], on every rank, on the host. Collective. Throws UsageError for ids that the model
// does not take.
at::Tensor logits_of(RunContext& context, RankModel& model, const std::vector<int64_t>& ids);

}  // namespace pptrain::app

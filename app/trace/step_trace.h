// What one rank did in one step, with times.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/kernels/kernel_times.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/schedule/cost/measured_step.h"

namespace pptrain::app {

// A rank's work other than its pipeline actions.
enum class Phase : uint8_t {
  data,
  zero_gradients,
  embedding_gradients,
  loss,
  gradient_norm,
  norm_exchange,
  optimizer,
  evaluation,
  checkpoint,
  count
};
const char* name(Phase phase);          // "gradient norm"
comm::ActivityKind doing(Phase phase);  // for the reports of failures

struct ActionSpan {
  double wait = 0;  // its turn came
  schedule::Span span;
};

struct PhaseSpan {
  Phase phase = Phase::data;
  schedule::Span span;
};

// Times in seconds on rank 0's clock.
struct StepTrace {
  int64_t step = 0;
  schedule::Span span;
  std::vector<ActionSpan> actions;              // one for each of schedule::timed_actions
  std::vector<PhaseSpan> phases;                // within the step, and after it up to the next
  std::optional<double> waited = std::nullopt;  // as in schedule::RankStep
};

schedule::RankStep to_rank_step(const StepTrace& trace);

// Several steps one after the other, as numbers to send.
std::vector<double> encode(std::span<const StepTrace> steps);
std::vector<StepTrace> decode(std::span<const double> numbers);

// Times of a rank's kernels in the traced steps, as in trace.json (README.md): a list of objects, the longest
// first. steps: the number of steps in `times`; the result is per step.
std::string kernel_shares_json(const kernels::KernelTimes& times, int64_t steps);

}  // namespace pptrain::app

// Compares two runs that should be equal bit for bit: finds the first step whose figures differ, and the
// checkpoints around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/compare/checkpoint_difference.h"
#include "app/report/run_data.h"

namespace pptrain::app {

struct FigureDifference {
  std::string key;  // of metrics.jsonl
  double a = 0, b = 0;
};

// Compares metrics.jsonl over the steps that both runs have.
struct StepComparison {
  int64_t steps = 0;                      // compared
  int64_t from = 0, to = 0;               // the lowest and the highest of them
  std::optional<int64_t> differs;         // the first step that differs
  std::vector<FigureDifference> figures;  // those that differ there
};

// Compares lr, loss, grad_norm and the tokens so far, with all their digits.
StepComparison compare_steps(const RunData& a, const RunData& b);

// Results for the checkpoints of steps that both runs have.
struct CheckpointSearch {
  std::vector<int64_t> common;            // ascending
  std::optional<int64_t> equal;           // the last one before `differs`; without a difference the newest
  std::optional<int64_t> differs;         // the first that differs
  std::vector<TensorDifference> tensors;  // of the checkpoint `differs`
};

// Bisects the checkpoints until the two neighbours are found: once runs differ, they stay different. Compares
// weights and optimizer state.
CheckpointSearch search_checkpoints(const RunData& a, const RunData& b);

// The part of its step in which the difference arose, in words; "" if that is not known.
std::string origin(const StepComparison& steps, const CheckpointSearch& checkpoints);

}  // namespace pptrain::app

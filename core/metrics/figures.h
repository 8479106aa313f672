// The figures of a record, one by one, for sinks that name and store each by itself: TensorBoard's tags and
// Prometheus' names stand together here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

struct Figure {
  std::string tag;  // of TensorBoard: "train/loss"
  std::string_view
      name;  // of Prometheus, without "pptrain_": "loss_nats"; ends with "_total" if it only grows
  std::string_view help;      // of Prometheus
  double value = 0;           // of TensorBoard
  double unit = 1;            // Prometheus, which takes base units, gets value * unit
  std::string_view label{};   // of Prometheus, in addition to the run's: "part"; empty: none
  std::string label_value{};  // "fill"
};

// What counts from a run's first step on, and is known before a start's own first step: tokens, skipped
// steps, the newest checkpoint.
std::vector<Figure> running_figures(const StepRecord& record);

// All else of the step, as far as it is known: no mfu without a peak rate, no bubble where none was measured.
// Figures of one name follow each other. The loads of single experts are not among them.
std::vector<Figure> step_figures(const StepRecord& record);

std::vector<Figure> eval_figures(const EvalRecord& record);

}  // namespace pptrain::metrics

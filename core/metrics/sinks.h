// Destinations of records. Sinks never reach back into the trainer. Only rank 0 has any.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const StepRecord& record) = 0;
  virtual void eval(const EvalRecord& record) = 0;
  // What the run does now instead of steps: "evaluating", "saving"; "" when steps go on.
  virtual void phase(std::string_view what) { (void)what; }
  // The run has come to its end in good order, or was stopped; nothing follows.
  virtual void end() {}
};

// While it lives, the sinks show that the run does `what`.
class PhaseNote {
 public:
  PhaseNote(const std::vector<std::unique_ptr<Sink>>& sinks, std::string_view what) : sinks_(sinks) {
    for (const auto& sink : sinks_) sink->phase(what);
  }
  ~PhaseNote() {
    for (const auto& sink : sinks_) sink->phase("");
  }
  PhaseNote(const PhaseNote&) = delete;
  PhaseNote& operator=(const PhaseNote&) = delete;

 private:
  const std::vector<std::unique_ptr<Sink>>& sinks_;
};

}  // namespace pptrain::metrics

// Where records go. Sinks never reach back into the trainer. Only rank 0 has any.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const StepRecord& record) = 0;
  virtual void eval(const EvalRecord& record) = 0;
};

// One line for the first step and then every `interval` steps; rates are means over the steps since the last
// line.
class LineSink : public Sink {
 public:
  LineSink(std::FILE* out, int64_t interval, int64_t last_step);
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

 private:
  std::FILE* out_;
  int64_t interval_, last_step_;
  bool first_ = true;
  int64_t tokens_ = 0;
  double time_ = 0, flops_time_ = 0;
  int64_t steps_ = 0;
};

// A bar that stays on one line of a terminal: step, loss, tokens/s, time left. Evaluations get lines of their
// own.
class ProgressSink : public Sink {
 public:
  ProgressSink(std::FILE* out, int64_t first_step, int64_t last_step);
  ~ProgressSink() override;
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

 private:
  std::FILE* out_;
  int64_t first_step_, last_step_;
  double mean_time_ = 0;
  bool open_ = false;
  std::chrono::steady_clock::time_point drawn_{};
};

std::string format_line(const StepRecord& record, int64_t last_step);
std::string format_line(const EvalRecord& record);

}  // namespace pptrain::metrics

// The records of steps as people watch them: lines of the log, and a bar on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/metrics/console.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

// Logs one line for the first step and then every `interval` steps; rates are means over the steps since the
// last line. A skipped step and an evaluation get lines of their own.
class LineSink : public Sink {
 public:
  LineSink(int64_t interval, int64_t last_step) : interval_(interval), last_step_(last_step) {}
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

 private:
  int64_t interval_, last_step_;
  bool first_ = true;
  int64_t tokens_ = 0;
  double time_ = 0, flops_time_ = 0;
  int64_t steps_ = 0;
};

// Keeps the status line of the console: the latest step, or what the run does instead of steps. The line goes
// when the sink does.
class BarSink : public Sink {
 public:
  BarSink(std::shared_ptr<Console> console, int64_t first_step, int64_t last_step);
  ~BarSink() override;
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& /*record*/) override {}
  void phase(std::string_view what) override;

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  std::shared_ptr<Console> console_;
  Progress progress_;
  TimeLeft time_left_;
  Clock::time_point drawn_{}, phase_begin_{};
};

}  // namespace pptrain::metrics

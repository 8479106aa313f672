// The records of steps as people watch them: lines of the log, a bar on a terminal, and at the end the losses
// as one line of characters.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/log_sinks.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

// Means of consecutive values: as many as there were, or halves of that again and again, so that the memory
// does not grow with the run. Values that are not finite are left out.
class RunningMeans {
 public:
  void add(double value);
  std::vector<double> means() const;
  std::optional<double> first() const { return first_; }
  std::optional<double> last() const { return last_; }

 private:
  static constexpr size_t most = 128;
  std::vector<double> sums_;
  int64_t group_ = 1;  // values of each sum, but for the last, which has in_last_
  int64_t in_last_ = 0;
  std::optional<double> first_, last_;
};

// The values from left to right in at most `columns` characters, the lowest value lowest: as block characters
// (UTF-8, each of one column), else in ASCII. Several values to a character are their mean. "" where there
// are none.
std::string sparkline(std::span<const double> values, size_t columns, bool utf8);

// "loss 5.6324 █▆▄▃▂▁▁ 1.6387", at most `columns` columns wide; "" where there are fewer than two losses, or
// where it does not fit.
std::string loss_line(const RunningMeans& losses, size_t columns, bool utf8);

// Do terminals of this locale take UTF-8? The first of these that is set and not empty says; null: not set.
bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang);

// Logs the line where the run ends.
class LossCurveSink : public Sink {
 public:
  void step(const StepRecord& record) override { losses_.add(record.loss); }
  void eval(const EvalRecord& /*record*/) override {}
  void end() override;

 private:
  RunningMeans losses_;
};

// Logs one line for the first step and then every `interval` steps; rates are means over the steps since the
// last line, and off a terminal the line says how long the rest takes. The first of several skipped steps
// gets a line of its own, and so does an evaluation.
class LineSink : public Sink {
 public:
  LineSink(int64_t interval, int64_t last_step) : interval_(interval), last_step_(last_step) {}
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;
  void phase(std::string_view what) override;
  void end() override { say_skipped(); }

 private:
  void say_skipped();

  int64_t interval_, last_step_;
  bool first_ = true;
  std::optional<int64_t> first_skipped_;  // since when none was taken
  int64_t last_skipped_ = 0;
  TimeLeft time_left_;
  std::chrono::steady_clock::time_point phase_begin_{};
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

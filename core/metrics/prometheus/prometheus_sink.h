// The latest figures of a run, for Prometheus to fetch.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/metrics/figures.h"
#include "core/metrics/prometheus/page_server.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// Prometheus' text format, version 0.0.4.
inline constexpr std::string_view exposition_type = "text/plain; version=0.0.4; charset=utf-8";

using Labels = std::vector<std::pair<std::string, std::string>>;

// One name with its HELP and TYPE, and a sample a line. "pptrain_" is put before the name; the type is
// counter where the name ends with "_total", else gauge.
class Exposition {
 public:
  // `labels` are of every sample.
  explicit Exposition(Labels labels) : labels_(std::move(labels)) {}

  // Figures of one name must follow each other, and come once.
  void add(std::span<const Figure> figures);
  void add(std::string_view name, std::string_view help, double value, const Labels& more = {});

  const std::string& text() const { return text_; }

 private:
  void sample(std::string_view name, double value, const Labels& more);
  void family(std::string_view name, std::string_view help);

  Labels labels_;
  std::string text_, last_;  // last_: the family begun last
};

// As a label's value: backslash, quote and newline escaped; what is no UTF-8 becomes U+FFFD.
std::string label_text(std::string_view value);

// "NaN", "+Inf", "-Inf", or the shortest digits that read back to the value.
std::string sample_text(double value);

// What the page says of the run as a whole.
struct RunFigures {
  std::string dir;
  int64_t last_step = 0;  // that it is to reach
  RunHeader header;
  StepRecord so_far;  // what running_figures needs, before this start's first step
};

// Takes the records; the page is written when somebody asks for it, by the server's thread.
class PrometheusSink : public Sink {
 public:
  PrometheusSink(Listener listener, RunFigures run);

  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

  // What GET /metrics gives.
  std::string page() const;

 private:
  using Clock = std::chrono::steady_clock;

  const RunFigures run_;
  const Clock::time_point begin_ = Clock::now();
  mutable std::mutex mutex_;  // of the two that follow
  std::optional<StepRecord> step_;
  std::optional<EvalRecord> eval_;
  PageServer server_;  // last: its thread uses the rest
};

}  // namespace pptrain::metrics

// The latest figures of a run, for Prometheus to fetch.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "core/metrics/prometheus/exposition.h"
#include "core/metrics/prometheus/page_server.h"
#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

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

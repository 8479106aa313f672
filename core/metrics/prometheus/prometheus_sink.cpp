#include "core/metrics/prometheus/prometheus_sink.h"

#include <utility>

namespace pptrain::metrics {
namespace {

double unix_seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

Labels describe(const RunHeader& header) {
  Labels labels = {{"version", header.version},
                   {"host", header.host},
                   {"device", header.device},
                   {"world_size", std::to_string(header.world_size)}};
  for (const auto& [name, value] : header.layout) {
    if (name != "data") labels.emplace_back(name, value);
  }
  return labels;
}

}  // namespace

PrometheusSink::PrometheusSink(Listener listener, RunFigures run)
    : run_(std::move(run)), server_(std::move(listener), exposition_type, [this] { return page(); }) {}

void PrometheusSink::step(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  step_ = record;
}

void PrometheusSink::eval(const EvalRecord& record) {
  const std::lock_guard lock(mutex_);
  eval_ = record;
}

std::string PrometheusSink::page() const {
  std::unique_lock lock(mutex_);
  const std::optional<StepRecord> step = step_;
  const std::optional<EvalRecord> eval = eval_;
  lock.unlock();
  Exposition text({{"run", run_.dir}});
  text.add("run_info", "What runs, in labels.", 1, describe(run_.header));
  text.add("start_time_seconds", "When this start of the run began, since 1970.",
           unix_seconds(run_.header.time));
  text.add("uptime_seconds", "Since this start of the run began.",
           std::chrono::duration<double>(Clock::now() - begin_).count());
  text.add("start_step", "Step that this start goes on from.", static_cast<double>(run_.header.step));
  text.add("last_step", "Step that the run is to reach.", static_cast<double>(run_.last_step));
  const StepRecord& known = step ? *step : run_.so_far;
  text.add("step", "Last step done.", static_cast<double>(known.step));
  text.add(running_figures(known));
  if (step) {
    text.add("step_time_seconds", "When the last step was done, since 1970.", unix_seconds(step->time));
    text.add("step_skipped", "1 where the last step was skipped.", step->skipped ? 1 : 0);
    text.add(step_figures(*step));
  }
  if (eval) {
    text.add("eval_step", "Step of the last evaluation.", static_cast<double>(eval->step));
    text.add(eval_figures(*eval));
  }
  return text.text();
}

}  // namespace pptrain::metrics

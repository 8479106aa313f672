#include "core/metrics/terminal_sinks.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/metrics/progress_text.h"

namespace pptrain::metrics {

void LineSink::step(const StepRecord& record) {
  tokens_ += record.tokens;
  time_ += record.step_time_s;
  flops_time_ += record.mfu * record.step_time_s;
  ++steps_;
  const bool due = first_ || record.step % interval_ == 0 || record.step == last_step_ || record.skipped;
  if (!due) return;
  StepRecord mean = record;
  mean.tokens_per_s = static_cast<double>(tokens_) / time_;
  mean.mfu = flops_time_ / time_;
  mean.step_time_s = time_ / static_cast<double>(steps_);
  spdlog::log(record.skipped ? spdlog::level::warn : spdlog::level::info, "{}",
              format_line(mean, last_step_));
  first_ = false;
  tokens_ = steps_ = 0;
  time_ = flops_time_ = 0;
}

void LineSink::eval(const EvalRecord& record) {
  spdlog::info("{}", format_line(record));
}

BarSink::BarSink(std::shared_ptr<Console> console, int64_t first_step, int64_t last_step)
    : console_(std::move(console)) {
  progress_.first_step = first_step;
  progress_.last_step = last_step;
  draw();
}

BarSink::~BarSink() {
  console_->clear();
}

void BarSink::step(const StepRecord& record) {
  constexpr auto interval = std::chrono::milliseconds(100);
  time_left_.step(record.step_time_s);
  progress_.latest = record;
  progress_.seconds_left = time_left_.estimate(progress_.last_step - record.step);
  if (record.step == progress_.last_step || Clock::now() - drawn_ >= interval) draw();
}

void BarSink::phase(std::string_view what) {
  const auto now = Clock::now();
  if (!progress_.phase.empty()) {
    time_left_.pause(std::chrono::duration<double>(now - phase_begin_).count());
  }
  phase_begin_ = now;
  progress_.phase = what;
  draw();
}

// The console may draw the line again at any time, from any thread: it gets a copy.
void BarSink::draw() {
  drawn_ = Clock::now();
  console_->show(
      [progress = progress_](int columns, bool color) { return progress_text(progress, columns, color); });
}

}  // namespace pptrain::metrics

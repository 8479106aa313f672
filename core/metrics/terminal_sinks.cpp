#include "core/metrics/terminal_sinks.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/timing.h"
#include "core/metrics/progress_text.h"

namespace pptrain::metrics {

namespace {

constexpr std::array<std::string_view, 8> blocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 8> signs = {"_", ".", "-", "=", "+", "*", "%", "#"};

// `count` means of consecutive values, of groups as equal as can be.
std::vector<double> resample(std::span<const double> values, size_t count) {
  std::vector<double> result;
  for (size_t i = 0; i < count; ++i) {
    const auto group = values.subspan(i * values.size() / count);
    const size_t size = (i + 1) * values.size() / count - i * values.size() / count;
    result.push_back(std::accumulate(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(size), 0.0) /
                     static_cast<double>(size));
  }
  return result;
}

}  // namespace

std::string sparkline(std::span<const double> values, size_t columns, bool utf8) {
  if (values.empty() || columns == 0) return "";
  const std::vector<double> points = resample(values, std::min(columns, values.size()));
  const auto [low, high] = std::ranges::minmax(points);
  const auto& levels = utf8 ? blocks : signs;
  std::string line;
  for (const double point : points) {
    const double share = high > low ? (point - low) / (high - low) : 0;
    const auto level = static_cast<size_t>(share * static_cast<double>(levels.size()));
    line += levels[std::min(level, levels.size() - 1)];
  }
  return line;
}

std::string loss_line(double first, std::span<const double> means, double last, size_t columns, bool utf8) {
  constexpr size_t least = 2;
  if (means.size() < least) return "";
  const std::string before = fmt::format("loss {:.4f} ", first);
  const std::string after = fmt::format(" {:.4f}", last);
  if (before.size() + after.size() + least > columns) return "";
  return before + sparkline(means, columns - before.size() - after.size(), utf8) + after;
}

bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang) {
  for (const char* name : {lc_all, lc_ctype, lang}) {
    if (name == nullptr || *name == '\0') continue;
    std::string lower;
    for (const char c : std::string_view(name))
      if (c != '-') lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return lower.find("utf8") != std::string::npos;
  }
  return false;
}

namespace {

constexpr int time_columns = 9;  // the log's "12:34:56 "

// Means of consecutive values: as many as there were, or halves of that again and again, so that the memory
// does not grow with the run. Values that are not finite are left out.
class RunningMeans {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    if (sums_.empty()) first_ = value;
    last_ = value;
    if (sums_.empty() || in_last_ == group_) {
      if (sums_.size() == most) {
        for (size_t i = 0; i < most / 2; ++i) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
        sums_.resize(most / 2);
        group_ *= 2;
      }
      sums_.push_back(0);
      in_last_ = 0;
    }
    sums_.back() += value;
    ++in_last_;
  }

  std::vector<double> means() const {
    std::vector<double> result = sums_;
    for (double& value : result) value /= static_cast<double>(group_);
    if (!result.empty()) result.back() = sums_.back() / static_cast<double>(in_last_);
    return result;
  }
  double first() const { return first_; }
  double last() const { return last_; }

 private:
  static constexpr size_t most = 128;
  std::vector<double> sums_;
  int64_t group_ = 1;  // values of each sum, but for the last, which has in_last_
  int64_t in_last_ = 0;
  double first_ = 0, last_ = 0;
};

class LossCurveSink final : public Sink {
 public:
  void step(const StepRecord& record) override { losses_.add(record.loss); }
  void eval(const EvalRecord& /*record*/) override {}
  void end() override {
    constexpr int widest = 60;
    const int columns = std::min(widest, terminal_columns().value_or(widest)) - time_columns;
    if (columns <= 0) return;
    const bool utf8 = is_utf8_locale(std::getenv("LC_ALL"), std::getenv("LC_CTYPE"), std::getenv("LANG"));
    const std::string line =
        loss_line(losses_.first(), losses_.means(), losses_.last(), static_cast<size_t>(columns), utf8);
    if (!line.empty()) spdlog::info("{}", line);
  }

 private:
  RunningMeans losses_;
};

class LineSink final : public Sink {
 public:
  LineSink(int64_t interval, int64_t last_step) : interval_(interval), last_step_(last_step) {}
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override { spdlog::info("{}", format_line(record)); }
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

void LineSink::step(const StepRecord& record) {
  tokens_ += record.tokens;
  time_ += record.step_time_s;
  flops_time_ += record.mfu * record.step_time_s;
  ++steps_;
  time_left_.step(record.step_time_s);
  if (!record.skipped) say_skipped();
  const bool begins_skipping = record.skipped && !first_skipped_;
  if (begins_skipping) first_skipped_ = record.step;
  if (record.skipped) last_skipped_ = record.step;
  if (!first_ && record.step % interval_ != 0 && record.step != last_step_ && !begins_skipping) return;
  StepRecord mean = record;
  mean.tokens_per_s = static_cast<double>(tokens_) / time_;
  mean.mfu = flops_time_ / time_;
  mean.step_time_s = time_ / static_cast<double>(steps_);
  const std::optional<int> columns = terminal_columns();
  // On a terminal the bar says how long it takes.
  const auto left = columns ? std::nullopt : time_left_.estimate(last_step_ - record.step);
  spdlog::log(
      record.skipped ? spdlog::level::warn : spdlog::level::info, "{}",
      format_line(mean, last_step_, left, columns ? std::optional(*columns - time_columns) : std::nullopt));
  first_ = false;
  tokens_ = steps_ = 0;
  time_ = flops_time_ = 0;
}

void LineSink::phase(std::string_view what) {
  if (!what.empty()) phase_begin_ = std::chrono::steady_clock::now();
  if (what.empty()) time_left_.pause(seconds_since(phase_begin_));
}

// The first of them had a line of its own.
void LineSink::say_skipped() {
  if (first_skipped_ && last_skipped_ > *first_skipped_)
    spdlog::warn("steps {} to {} were skipped, one after the other", *first_skipped_, last_skipped_);
  first_skipped_.reset();
}

class BarSink final : public Sink {
 public:
  BarSink(std::shared_ptr<Console> console, int64_t first_step, int64_t last_step)
      : console_(std::move(console)) {
    progress_.first_step = first_step;
    progress_.last_step = last_step;
    draw();
  }
  ~BarSink() override { console_->clear(); }
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

void BarSink::step(const StepRecord& record) {
  constexpr auto interval = std::chrono::milliseconds(100);
  time_left_.step(record.step_time_s);
  progress_.latest = record;
  progress_.seconds_left = time_left_.estimate(progress_.last_step - record.step);
  if (record.step == progress_.last_step || Clock::now() - drawn_ >= interval) draw();
}

void BarSink::phase(std::string_view what) {
  if (!progress_.phase.empty()) time_left_.pause(seconds_since(phase_begin_));
  phase_begin_ = Clock::now();
  progress_.phase = what;
  draw();
}

// The console may draw the line again at any time, from any thread: it gets a copy.
void BarSink::draw() {
  drawn_ = Clock::now();
  console_->show(
      [progress = progress_](int columns, bool color) { return progress_text(progress, columns, color); });
}

}  // namespace

std::unique_ptr<Sink> make_loss_curve_sink() {
  return std::make_unique<LossCurveSink>();
}

std::unique_ptr<Sink> make_line_sink(int64_t interval, int64_t last_step) {
  return std::make_unique<LineSink>(interval, last_step);
}

std::unique_ptr<Sink> make_bar_sink(std::shared_ptr<Console> console, int64_t first_step, int64_t last_step) {
  return std::make_unique<BarSink>(std::move(console), first_step, last_step);
}

}  // namespace pptrain::metrics

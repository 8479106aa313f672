#include "app/run/step_profile.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>

#include "app/trace/step_trace.h"
#include "app/trace/trace_file.h"
#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/kernels/device_name.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/timed_wait.h"

namespace pptrain::app {

namespace {

constexpr int64_t steps_between_alignments = 100;  // of the hosts' clocks

}  // namespace

StepProfile::StepProfile(RunContext& context, pipeline::Executor& executor,
                         const schedule::Schedule& schedule)
    : context_(context),
      executor_(&executor),
      schedule_(&schedule),
      pipeline_(context.mesh.along(mesh::Axis::pp).host().duplicate()),
      pipelines_(context.mesh.of(mesh::Group::stage).host().duplicate()) {}

void StepProfile::follow(pipeline::Executor& executor, const schedule::Schedule& schedule) {
  executor_ = &executor;
  schedule_ = &schedule;
}

bool StepProfile::traced(int64_t count) const {
  const config::ProfileSection& profile = context_.job.profile;
  return profile.trace && count >= profile.first_step && count < profile.first_step + profile.steps;
}

// Reading a device's times means waiting for it, so on a device only traced steps are timed.
std::optional<at::Device> StepProfile::timed_on() const {
  if (context_.device.is_cpu() || traced(count_)) return context_.device;
  return std::nullopt;
}

void StepProfile::start_marks(std::optional<at::Device> device) {
  marks_.reset(device);
  phases_.clear();
}

void StepProfile::begin_step(int64_t step) {
  if (!traces_.empty()) {
    take_phases(traces_.back(), 0);
    if (!ended_ && !traced(count_ + 1)) write();
  }
  const bool opens = traced(count_ + 1) && !traced(count_);
  if (opens || count_ % steps_between_alignments == 0) {
    clock_offset_ = comm::clock_offset(context_.mesh.world());
  }
  ++count_;
  step_ = step;
  if (context_.activity != nullptr) {
    context_.activity->set(comm::ActivityKind::work, fmt::format("step {}", step));
  }
  executor_->time_on(timed_on());
  if (context_.device.is_cpu() && traced(count_)) kernel_clock_.emplace(kernel_times_);
  start_marks(timed_on());
  marks_.mark();
  waited_ = comm::TimedWait::seconds();
}

void StepProfile::end_step() {
  kernel_clock_.reset();
  if (timed_on()) {
    marks_.mark();
    StepTrace trace{.step = step_, .span = {}, .actions = {}, .phases = {}};
    if (context_.device.is_cpu()) trace.waited = comm::TimedWait::seconds() - waited_;
    const auto times = marks_.times();
    trace.span = {seconds(times.front()), seconds(times.back())};
    take_phases(trace, 1);
    for (const auto& [wait, start, end] : executor_->times()) {
      trace.actions.push_back({seconds(wait), {seconds(start), seconds(end)}});
    }
    ended_ = {count_, std::move(trace)};
  }
  start_marks(at::kCPU);  // work between steps returns when the device is done
}

std::optional<metrics::Bubble> StepProfile::settle() {
  shares_.clear();
  if (!ended_) return std::nullopt;
  auto [count, trace] = std::move(*ended_);
  ended_.reset();
  const comm::ActivityScope waiting(context_.activity, comm::ActivityKind::wait, "the times of the step");
  const metrics::Bubble bubble = measure(trace);
  if (traced(count)) {
    traces_.push_back(std::move(trace));
    bubbles_.push_back(bubble);
    if (count_ > count && !traced(count + 1)) write();
  }
  return bubble;
}

double StepProfile::seconds(pipeline::TimeMarks::Clock::time_point time) const {
  return in_seconds(time.time_since_epoch() + clock_offset_);
}

void StepProfile::take_phases(StepTrace& trace, size_t first) {
  const auto times = marks_.times();
  for (size_t i = 0; i < phases_.size(); ++i) {
    trace.phases.push_back({phases_[i], {seconds(times[first + 2 * i]), seconds(times[first + 2 * i + 1])}});
  }
  phases_.clear();
}

// Each pipeline's first rank splits the times of its ranks, and rank 0 puts them together.
metrics::Bubble StepProfile::measure(const StepTrace& trace) {
  std::vector<schedule::RankStep> steps;
  for (const auto& numbers : comm::gather(*pipeline_, encode({&trace, 1}), 0))
    steps.push_back(to_rank_step(decode(numbers).at(0)));
  if (pipeline_->rank() != 0) return {};
  const std::vector<schedule::RankTime> times = schedule::split_step(*schedule_, steps);
  std::array<double, 5> idle{};  // sums over ranks, of fractions of the step
  std::vector<double> shares;
  for (const RankShares& of_rank : rank_shares(*schedule_, steps, times))
    shares.insert(shares.end(), of_rank.begin(), of_rank.end());
  for (size_t r = 0; r < times.size(); ++r) {
    const schedule::RankTime& t = times[r];
    const double length = steps[r].step.end - steps[r].step.start;
    const std::array parts = {t.fill, t.steady, t.drain, t.barrier, t.wait_for_transfer};
    for (size_t i = 0; i < parts.size(); ++i) idle[i] += parts[i] / length;
  }
  const auto idle_of = comm::gather(*pipelines_, idle, 0), shares_of = comm::gather(*pipelines_, shares, 0);
  if (!context_.root()) return {};
  shares_.resize(times.size() * shares_of.size());
  for (size_t i = 0; i < shares_of.size(); ++i) {
    auto from = shares_of[i].begin();
    for (size_t r = 0; r < times.size(); ++r) {
      RankShares& to = shares_[r * shares_of.size() + i];
      std::copy_n(from, to.size(), to.begin());
      from += std::ssize(to);
    }
  }
  const auto mean = [&](size_t part) {
    double sum = 0;
    for (const std::vector<double>& of_pipeline : idle_of) sum += of_pipeline[part];
    return sum / static_cast<double>(shares_.size());
  };
  return {.fill = mean(0), .steady = mean(1), .drain = mean(2), .barrier = mean(3), .wait = mean(4)};
}

void StepProfile::finish() {
  if (!traces_.empty()) {
    take_phases(traces_.back(), 0);
    write();
  }
  const config::ProfileSection& profile = context_.job.profile;
  if (!context_.root() || !profile.trace) return;
  if (written_) {
    spdlog::info("trace in {}/trace.json", context_.job.run.dir);
  } else if (count_ < profile.first_step) {
    spdlog::warn("no trace: this start of the run made {} step(s), profile.first_step is {}", count_,
                 profile.first_step);
  }
}

void StepProfile::write() {
  const auto gathered = comm::gather(context_.mesh.world(), encode(traces_), 0);
  std::vector<std::string> shares;
  if (context_.device.is_cpu()) {
    const std::string own = kernel_shares_json(kernel_times_, std::ssize(traces_));
    shares = comm::gather_strings(context_.mesh.world(), own, 0);
  }
  if (context_.root()) {
    std::vector<std::vector<StepTrace>> ranks;
    for (const auto& numbers : gathered) ranks.push_back(decode(numbers));
    const auto path = std::filesystem::path(context_.job.run.dir) / "trace.json";
    const std::string device = context_.device.is_cpu() ? "cpu" : kernels::device_name(context_.device);
    const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing the trace");
    const std::string text = render_trace_file(context_.plan, device, ranks, bubbles_, shares);
    try {
      io::write_file_atomically(path, text);
      written_ = true;
    } catch (const Error& error) {  // such as a full disk, which must not end training
      spdlog::warn("the trace is not written: {}", error.what());
    }
  }
  traces_.clear();
  bubbles_.clear();
  kernel_times_.clear();
}

}  // namespace pptrain::app

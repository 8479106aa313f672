#include "app/train/quick_stop.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "app/run/run_log.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/process.h"
#include "core/metrics/log_sinks.h"

namespace pptrain::app {

namespace {

constexpr std::chrono::milliseconds look_again{10};

[[noreturn]] void end_process(int code) {
  if (const auto console = metrics::console_of_log()) console->clear();
  std::fflush(nullptr);
  _exit(code);  // the main thread is in the middle of a step: nothing can be unwound
}

}  // namespace

QuickStop::QuickStop(comm::Communicator& world, const fault::Shutdown& shutdown,
                     std::chrono::milliseconds patience, const checkpoint::RunState& state, Save save,
                     std::function<void()> take_leave, comm::Summons summons)
    : world_(world.duplicate()),
      shutdown_(shutdown),
      patience_(patience),
      save_(std::move(save)),
      take_leave_(std::move(take_leave)),
      summons_(std::move(summons)),
      state_(state),
      begun_(state.step) {
  listener_.emplace(shutdown, [this](const fault::StopRequest& request) { run(request); });
  if (summons_.hear) summons_.hear([this] { shutdown_.take_launchers_request(SIGTERM); });
}

QuickStop::~QuickStop() {
  if (summons_.hear) summons_.hear({});
  {
    Lock lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return mode_ != Mode::saving; });
  }
  listener_.reset();
}

void QuickStop::begin_update(int64_t step) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return !limit_ || step <= *limit_; });
  begun_ = step;
}

void QuickStop::finished(const checkpoint::RunState& state, bool saves) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    main_saves_ = saves;
  }
  changed_.notify_all();
}

void QuickStop::saved() {
  {
    const std::lock_guard lock(mutex_);
    main_saves_ = false;
  }
  changed_.notify_all();
}

void QuickStop::stopping() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return main_saves_ || mode_ == Mode::waiting; });
  stopping_ = true;
}

void QuickStop::run(const fault::StopRequest& request) {
  if (!request.from_launcher) return;
  const c10::InferenceMode inference;
  if (!request.notice && summons_.send) summons_.send();
  if (!sleep_until(request.time + patience_ / 4)) return;
  try {
    if (!all_are_asked() || !decide()) return;
    const std::string saved = save();
    if (!request.notice || request_follows(request)) end(saved);
    release();
  } catch (const std::exception& error) {
    log_failure(error.what());
    fmt::print(stderr, "pptrain: stopping in a hurry failed: {}\n", printable(error.what()));
    end_process(exit_failed);
  }
}

bool QuickStop::sleep_until(std::chrono::steady_clock::time_point time) {
  Lock lock(mutex_);
  return !changed_.wait_until(lock, time, [&] { return leaving_; });
}

// Waits, while the main thread goes on, until the quick stops of all ranks have come here: one that holds its
// main thread for others that nobody has asked would wait for ever.
bool QuickStop::all_are_asked() {
  return highest_unless_one_ended({}).has_value();
}

bool QuickStop::decide() {
  Values own;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) mode_ = Mode::deciding;
    limit_ = begun_;
    own = {static_cast<double>(begun_), stopping_ ? 1.0 : 0.0};
  }
  const std::optional<Values> agreed = highest_unless_one_ended(own);
  Lock lock(mutex_);
  // A rank whose main thread ends the run in order has agreed so with all others: theirs do too.
  const bool in_order = !agreed || (*agreed)[1] > 0;
  mode_ = in_order ? Mode::waiting : Mode::saving;
  limit_ = in_order ? std::nullopt : std::optional(static_cast<int64_t>((*agreed)[0]));
  changed_.notify_all();
  if (in_order) return false;
  const auto ready = [&] { return state_.step >= *limit_ && !main_saves_; };
  changed_.wait(lock, [&] { return ready() || leaving_; });
  // Where the step was due to be saved, the main threads of all ranks have done so, and may be ending the run
  // by themselves. Where this rank's has failed, that is what is to be said.
  if (!stopping_ && ready()) return true;
  mode_ = Mode::waiting;
  changed_.notify_all();
  return false;
}

std::string QuickStop::save() {
  checkpoint::RunState state;
  {
    const std::lock_guard lock(mutex_);
    state = state_;
  }
  return save_(*world_, state);
}

bool QuickStop::request_follows(const fault::StopRequest& notice) {
  constexpr std::chrono::milliseconds late{500};
  const auto deadline = notice.time + patience_ / 2 + late;
  while (!shutdown_.launchers_request()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(look_again);
  }
  return true;
}

void QuickStop::end(const std::string& saved) {
  if (world_->rank() == 0)
    spdlog::info("stopped by the launcher in the middle of a step; {}. Run the same command to resume.",
                 saved);
  try {
    highest({});  // nobody leaves before all have saved: a rank that is gone looks like a failure
  } catch (const std::exception&) {
    // Another one was quicker; it had saved.
  }
  if (take_leave_) take_leave_();
  end_process(exit_stopped);
}

void QuickStop::release() {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::waiting;
  limit_.reset();
  changed_.notify_all();
}

// A rank that has ended in order agreed so with all others before. One that has died is for the main threads
// to find, which go on; they say it better.
std::optional<QuickStop::Values> QuickStop::highest_unless_one_ended(const Values& values) {
  try {
    return highest(values);
  } catch (const PeerFailure&) {
    return std::nullopt;
  }
}

// By way of rank 0.
std::optional<QuickStop::Values> QuickStop::highest(Values values) {
  const auto message = [&] { return at::empty({static_cast<int64_t>(values.size()) + 1}, at::kDouble); };
  const auto pack = [&] {
    at::Tensor tensor = message();
    std::ranges::copy(values, tensor.mutable_data_ptr<double>());
    tensor.mutable_data_ptr<double>()[values.size()] = 0;  // a message is never empty
    return tensor;
  };
  if (world_->rank() != 0) {
    at::Tensor answer = message();
    const auto sent = world_->isend(pack(), 0);
    const auto received = world_->irecv(answer, 0);
    if (!complete(*sent) || !complete(*received)) return std::nullopt;
    std::copy_n(answer.const_data_ptr<double>(), values.size(), values.begin());
    return values;
  }
  std::vector<std::pair<at::Tensor, std::unique_ptr<comm::Work>>> others;
  for (int rank = 1; rank < world_->size(); ++rank) {
    at::Tensor told = message();
    others.emplace_back(told, world_->irecv(told, rank));
  }
  for (auto& [told, work] : others) {
    if (!complete(*work)) return std::nullopt;
    const double* other = told.const_data_ptr<double>();
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other[i]);
  }
  for (int rank = 1; rank < world_->size(); ++rank) {
    if (!complete(*world_->isend(pack(), rank))) return std::nullopt;
  }
  return values;
}

bool QuickStop::complete(comm::Work& work) {
  while (!work.wait_for(look_again)) {
    const std::lock_guard lock(mutex_);
    if (leaving_ && mode_ != Mode::saving) return false;
  }
  work.wait();  // at once; it says what went wrong
  return true;
}

}  // namespace pptrain::app

#include "app/train/run_stop.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/run/run_log.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/metrics/log_sinks.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

namespace {

constexpr std::chrono::milliseconds look_again{10};

[[noreturn]] void end_process(int code) {
  if (const auto console = metrics::sink_of_log<metrics::Console>()) console->clear();
  std::fflush(nullptr);
  _exit(code);  // the main thread is in the middle of a step: nothing can be unwound
}

}  // namespace

// Between two updates of the weights a rank holds the state of a finished step, whatever its pipeline does
// meanwhile. When the launcher asks for an end, a thread of each rank waits for a quarter of the time that
// the launcher leaves: until then the run may stop in order. After that no update begins on any rank. The
// ranks agree on the newest step that one of them has begun to apply. All can finish it: its gradient norm is
// known, so every rank has done its part. Then they save it through a communicator of their own, while the
// main threads are held, and end with exit code 3.
//
// The launcher's agent on one host may ask alone (a pod is evicted, a node drained). So a rank that is asked
// summons all others, which then act as if they had been asked. If that does not reach them (without
// heartbeats), nothing is held: the main threads finish the current step and stop in order.
//
// After a notice the same happens, but the process waits for the request before it ends. If none comes in
// time, the main threads go on from where they were held.
class QuickStop {
 public:
  // Collective over the world. `patience`: from the launcher's first signal to SIGKILL; a notice comes half
  // of it before the request. `state`: of the last finished step. The references must outlive this.
  QuickStop(const RunContext& context, const fault::Shutdown& shutdown, std::chrono::milliseconds patience,
            const RunDir& run_dir, RunSaver& saver, const checkpoint::RunState& state);
  // Does not return if the quick stop has begun: it ends the process.
  ~QuickStop();
  QuickStop(const QuickStop&) = delete;
  QuickStop& operator=(const QuickStop&) = delete;

  // As RunStop's methods of these names, called by the main thread.
  void begin_update(int64_t step);
  void finished(const checkpoint::RunState& state, bool diverged);
  void begin_save();
  void saved();
  void stopping();

 private:
  enum class Mode { waiting, deciding, saving };
  using Lock = std::unique_lock<std::mutex>;

  void run(const fault::StopRequest& request);
  bool sleep_until(std::chrono::steady_clock::time_point time);  // false: this object is being destroyed
  bool decide();                                                 // true: this thread saves the state
  std::string save();                                            // returns what is saved and its place
  bool request_follows(const fault::StopRequest& notice);
  [[noreturn]] void end(const std::string& saved);
  void release();  // the main thread may go on
  // The elementwise maximum over all ranks. Nothing if this object is being destroyed meanwhile.
  using Values = std::vector<double>;
  std::optional<Values> highest(Values values);
  // As highest(), but also nothing if another rank has ended.
  std::optional<Values> highest_unless_one_ended(const Values& values);
  bool complete(comm::Work& work);

  std::unique_ptr<comm::Communicator> world_;
  const fault::Shutdown& shutdown_;
  const std::chrono::milliseconds patience_;
  const RunContext& context_;
  const RunDir& run_dir_;
  RunSaver& saver_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Mode mode_ = Mode::waiting;
  checkpoint::RunState state_;    // of the last finished step
  int64_t begun_;                 // the last step whose update was allowed to begin
  std::optional<int64_t> limit_;  // no later step's update may begin
  bool main_saves_ = false;       // the main thread saves state_, or is about to
  bool main_saved_ = false;       // ... or has done so
  bool stopping_ = false;         // it ends the run in order
  bool leaving_ = false;          // the destructor waits
  int64_t saved_step_ = 0;        // by this thread

  std::optional<fault::StopListener> listener_;  // last: its thread uses all of the above
};

QuickStop::QuickStop(const RunContext& context, const fault::Shutdown& shutdown,
                     std::chrono::milliseconds patience, const RunDir& run_dir, RunSaver& saver,
                     const checkpoint::RunState& state)
    : world_(context.mesh.world().duplicate()),
      shutdown_(shutdown),
      patience_(patience),
      context_(context),
      run_dir_(run_dir),
      saver_(saver),
      state_(state),
      begun_(state.step) {
  listener_.emplace(shutdown, [this](const fault::StopRequest& request) { run(request); });
  if (context.heartbeat != nullptr)
    context.heartbeat->on_summons([this] { shutdown_.take_launchers_request(SIGTERM); });
}

QuickStop::~QuickStop() {
  if (context_.heartbeat != nullptr) context_.heartbeat->on_summons({});
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

void QuickStop::finished(const checkpoint::RunState& state, bool diverged) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
    main_saves_ = diverged;
    main_saved_ = false;
  }
  changed_.notify_all();
}

void QuickStop::begin_save() {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return main_saves_ || mode_ == Mode::waiting; });
  main_saves_ = true;
}

void QuickStop::saved() {
  {
    const std::lock_guard lock(mutex_);
    main_saves_ = false;
    main_saved_ = true;
  }
  changed_.notify_all();
}

void QuickStop::stopping() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
}

void QuickStop::run(const fault::StopRequest& request) {
  if (!request.from_launcher) return;
  const c10::InferenceMode inference;
  if (!request.notice && context_.heartbeat != nullptr) context_.heartbeat->summon();
  if (!sleep_until(request.time + patience_ / 4)) return;
  try {
    // Waits, while the main thread goes on, until the quick stops of all ranks are here. If a rank held its
    // main thread for ranks that nobody has asked, it would wait for ever.
    if (!highest_unless_one_ended({}) || !decide()) return;
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

bool QuickStop::decide() {
  Values own;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) mode_ = Mode::deciding;
    limit_ = begun_;
    own = {static_cast<double>(begun_), stopping_ ? 1.0 : 0.0, main_saves_ ? 1.0 : 0.0};
  }
  const std::optional<Values> agreed = highest_unless_one_ended(own);
  Lock lock(mutex_);
  // If one rank's main thread ends the run in order, all ranks have agreed on it: the others' do too.
  const bool in_order = !agreed || (*agreed)[1] > 0;
  // If one rank's main thread is at its save, it waits for the others' there. Else none gets there any more.
  const bool by_main = !in_order && (*agreed)[2] > 0;
  mode_ = in_order || by_main ? Mode::waiting : Mode::saving;
  limit_ = in_order ? std::nullopt : std::optional(static_cast<int64_t>((*agreed)[0]));
  changed_.notify_all();
  if (in_order) return false;
  const auto ready = [&] { return state_.step >= *limit_ && !main_saves_ && (!by_main || main_saved_); };
  changed_.wait(lock, [&] { return ready() || leaving_; });
  // After their saves the main threads of all ranks may be ending the run by themselves. If this rank's has
  // failed, its error is reported.
  const bool saves = !stopping_ && ready();
  mode_ = saves ? Mode::saving : Mode::waiting;
  changed_.notify_all();
  return saves;
}

std::string QuickStop::save() {
  std::unique_lock lock(mutex_);
  const checkpoint::RunState state = state_;
  lock.unlock();
  saved_step_ = state.step;
  return saver_.save_quickly(*world_, state);
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
    highest({});  // nobody leaves before all have saved: a missing rank looks like a failure
  } catch (const std::exception&) {
    // Another one was quicker; it had saved.
  }
  if (context_.root())
    run_dir_.end({.how = RunPhase::stopped, .step = saved_step_, .checkpoint = checkpoint_name(saved_step_)});
  run_dir_.remove_copies();
  if (context_.heartbeat != nullptr) context_.heartbeat->leave();  // so that others do not take it for dead
  end_process(exit_stopped);
}

void QuickStop::release() {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::waiting;
  limit_.reset();
  changed_.notify_all();
}

// A rank that has ended in order agreed on it with all others before. A dead rank is left to the main
// threads, which go on and report it better.
auto QuickStop::highest_unless_one_ended(const Values& values) -> std::optional<Values> {
  try {
    return highest(values);
  } catch (const PeerFailure&) {
    return std::nullopt;
  }
}

// Through rank 0.
auto QuickStop::highest(Values values) -> std::optional<Values> {
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
  work.wait();  // returns at once; throws what went wrong
  return true;
}

// A step that post-validation may still take back is not saved; a GPU's stream is not waited for here.
RunStop::RunStop(const RunContext& context, const fault::Shutdown& shutdown, const RunDir& run_dir,
                 RunSaver& saver, const checkpoint::RunState& state, int64_t saved)
    : run_dir_(context.job.run.dir),
      shutdown_(shutdown),
      saver_(saver),
      saved_before_(saved),
      is_root_(context.root()),
      stops_quickly_(patience_.time && !context.job.optimizer.post_validation && context.device.is_cpu() &&
                     !context.shares_process),
      under_way_(state.step + 1) {
  if (context.root())
    signals_.emplace(shutdown_, [this](const fault::StopRequest& request) { announce(request); });
  if (!stops_quickly_) return;
  quick_ = std::make_unique<QuickStop>(context, shutdown, *patience_.time, run_dir, saver, state);
  if (context.root() && !patience_.advice.empty()) spdlog::info("{}", patience_.advice);
}

RunStop::~RunStop() = default;

void RunStop::begin_step(int64_t step) {
  under_way_ = step;
  if (!is_root_) return;
  const char* const over_the_progress_bar = metrics::terminal_columns() ? "\r\x1b[K" : "";
  shutdown_.set_last_words(
      fmt::format("{}ended at once in step {}: {}\n", over_the_progress_bar, step, lost_by_ending_at_once()));
}

// What is lost if the process ends during a step.
std::string RunStop::lost_by_ending_at_once() const {
  const int64_t saved = std::max(saver_.saved_step(), saved_before_), lost = under_way_ - 1 - saved;
  const std::string steps = fmt::format("{} finished step{}", lost, lost == 1 ? "" : "s");
  if (saved == 0) return fmt::format("no checkpoint was saved, so {} are lost", steps);
  const std::string newest = fmt::format("the newest checkpoint is {}", checkpoint_name(saved));
  return lost == 0 ? newest : fmt::format("{}, so {} {} lost", newest, steps, lost == 1 ? "is" : "are");
}

void RunStop::begin_update(int64_t step) {
  if (quick_) quick_->begin_update(step);
}

void RunStop::finished(const checkpoint::RunState& state, bool diverged) {
  if (quick_) quick_->finished(state, diverged);
}

void RunStop::begin_save() {
  if (quick_) quick_->begin_save();
}

void RunStop::saved() {
  if (quick_) quick_->saved();
}

void RunStop::stopping() {
  if (signals_) signals_->catch_up();  // says what the signal will do before stopping() does it
  if (quick_) quick_->stopping();
}

void RunStop::failed() {
  quick_.reset();
}

void RunStop::announce(const fault::StopRequest& request) const {
  if (request.notice) return;  // it may mean nothing
  const std::string signal = fault::signal_name(request.signal);
  if (read_last_words(run_dir_).empty()) {  // else another rank is gone, and that is the reason
    note_last_words(
        run_dir_, fmt::format("{}{} asked the run to end, and its process ended before it had saved", signal,
                              request.from_launcher ? " from the launcher" : ""));
  }
  if (request.from_launcher && stops_quickly_) {
    spdlog::info("{} from the launcher: saving the last finished step", signal);
  } else {
    spdlog::info("{}: finishing step {}, then saving; {} to stop at once ({})", signal, under_way_.load(),
                 request.signal == SIGINT ? "press again" : "send SIGINT twice", lost_by_ending_at_once());
  }
}

}  // namespace pptrain::app

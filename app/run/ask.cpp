#include "app/run/ask.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "app/run/run_status.h"
#include "core/base/error.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds between_looks{200};
constexpr std::chrono::seconds between_lines{10};

Outcome refused(const fs::path& run_dir, RequestKind kind, const RunStatus& status) {
  std::string why;
  if (status.is_alive()) {
    why = fmt::format("{}: a run is just taking this folder. Ask again", run_dir.string());
  } else if (status.phase == RunPhase::cannot_tell) {
    why = fmt::format(
        "{}: this file system cannot lock, so the run cannot be told from an earlier one. Send its process a "
        "signal: SIGTERM stops it after saving",
        run_dir.string());
  } else {
    why = fmt::format(
        "{}: no run is under way here ({}). There is nothing to {}{}", run_dir.string(),
        word_of(status.phase), word_of(kind),
        status.checkpoint.empty() ? "" : fmt::format("; the newest checkpoint is {}", status.checkpoint));
  }
  return {.state = "refused", .message = why};
}

class Asking {
 public:
  Asking(const fs::path& run_dir, const Request& request, const AskOptions& options)
      : run_dir_(run_dir), request_(request), options_(options) {}

  Outcome wait() {
    while (true) {
      // The lock first: a run answers before it gives it up.
      const bool gone = !still_there();
      if (!answer_) answer_ = take_answer(run_dir_, request_.id);
      if (answer_ && (gone || request_.kind == RequestKind::save || !answer_->done)) return by_answer();
      if (gone) return by_end();
      if (options_.interrupted && options_.interrupted()) return give_up("interrupted");
      if (Clock::now() - begin_ > options_.patience) return give_up("waited long enough");
      tell_progress();
      std::this_thread::sleep_for(between_looks);
    }
  }

 private:
  // The run that was asked, not another one that has begun since.
  bool still_there() const {
    const LockState lock = look_at_lock(run_dir_);
    if (lock.held == LockState::Held::no) return false;
    return !lock.holder || lock.holder->same_process(request_.run);
  }

  Outcome by_answer() const {
    const bool stop = request_.kind == RequestKind::stop;
    return {.done = answer_->done,
            .state = !answer_->done ? "failed"
                     : stop         ? "stopped"
                                    : "saved",
            .step = answer_->step,
            .checkpoint = answer_->checkpoint,
            .message = answer_->message};
  }

  Outcome by_end() const {
    withdraw(run_dir_, request_);
    const std::optional<RunEnd> end = read_run_end(run_dir_);
    const bool known = end && (end->process.pid == 0 || end->process.same_process(request_.run));
    if (!known) {
      return {.state = "failed",
              .message = "the run ended before it answered, and did not say how (killed?); log.txt may"};
    }
    const bool saved = end->how == "finished" || end->how == "stopped";
    return {.done = saved,
            .state = saved ? end->how : "failed",
            .step = end->step,
            .checkpoint = end->checkpoint,
            .message = saved ? fmt::format("the run had ended by itself: {}", end->how) : end->message};
  }

  Outcome give_up(const std::string& why) const {
    if (answer_) {
      Outcome outcome = by_answer();
      outcome.message = "the run has saved and is about to end";
      return outcome;
    }
    const bool withdrawn = withdraw(run_dir_, request_);
    return {.state = "unanswered",
            .message = fmt::format("{}: the run has not answered. {}", why,
                                   withdrawn ? "The request is withdrawn; if the run has seen it, it still "
                                               "acts on it after the step under way"
                                             : "It is acting on the request")};
  }

  void tell_progress() {
    if (!options_.progress || Clock::now() - told_ < between_lines) return;
    told_ = Clock::now();
    const RunStatus status = read_status(run_dir_);
    const std::string doing = status.saving ? fmt::format("saving step {}", *status.saving)
                              : status.step ? fmt::format("after step {}", status.step->step)
                                            : std::string("starting");
    options_.progress(fmt::format("waiting for the run ({}), {:.0f} s", doing,
                                  std::chrono::duration<double>(told_ - begin_).count()));
  }

  const fs::path& run_dir_;
  const Request& request_;
  const AskOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point told_ = begin_;
  std::optional<Answer> answer_;
};

}  // namespace

Outcome ask(const fs::path& run_dir, RequestKind kind, const AskOptions& options) {
  const RunStatus status = read_status(run_dir);
  if (!status.is_alive() || !status.holder) return refused(run_dir, kind, status);
  const Request request = make_request(kind, *status.holder);
  post(run_dir, request);
  if (!options.waits) {
    return {.done = true,
            .state = "requested",
            .message = fmt::format("the run is asked to {} after the step under way", word_of(kind))};
  }
  return Asking(run_dir, request, options).wait();
}

}  // namespace pptrain::app

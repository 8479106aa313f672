#include "parallel/checkpoint/saver.h"

#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <exception>
#include <utility>

#include "core/base/log.h"
#include "core/base/threads.h"
#include "parallel/checkpoint/snapshot.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

namespace {
// Time for the other ranks to finish a save if this rank ends with an exception.
constexpr std::chrono::minutes last_patience{5};

// Adds its lifetime to a number of seconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

struct Saver::Job {
  Job(const RunState& s, std::vector<StageContents> stages, SaveTerms t, std::optional<c10::Stream>& side)
      : state(s), snapshot(std::move(stages), side), terms(std::move(t)) {}
  RunState state;
  Snapshot snapshot;
  SaveTerms terms;
};

Saver::Saver(comm::Communicator& comm, SaveOptions options, bool background, std::string newest)
    : comm_(comm), options_(std::move(options)), background_(background), newest_(std::move(newest)) {}

Saver::~Saver() {
  if (!done_.valid()) return;
  if (std::uncaught_exceptions() > 0 && done_.wait_for(last_patience) != std::future_status::ready)
    comm_.abort("a checkpoint that was being saved does not come to an end");
  done_.wait();
}

void Saver::start(const RunState& state, std::vector<StageContents> stages, SaveTerms terms) {
  const Stopwatch watch(stalled_);
  if (!terms.is_last && busy() && comm_.rank() == 0) {
    spdlog::info("step {} waits until step {} is saved: saves are due faster than they can be written",
                 state.step, job_->state.step);
  }
  collect();
  failure_.reset();
  job_ = std::make_unique<Job>(state, std::move(stages), std::move(terms), copies_stream_);
  {
    const SignalBlock block;
    done_ = std::async(std::launch::async, [this, rank = log_rank()] {
      const LogRank naming(rank);
      run(*job_);
    });
  }
  if (!background_) collect();
}

void Saver::run(Job& job) {
  const c10::InferenceMode inference;
  try {
    const std::filesystem::path target = save_snapshot(comm_, options_, job.terms, job.state, job.snapshot);
    newest_ = target.filename().string();
    if (!job.terms.diverged) saved_step_ = job.state.step;
    if (comm_.rank() == 0 && options_.ended) options_.ended(job.state.step, target, "");
  } catch (const NotSaved& error) {
    failure_ = error.what();
    if (comm_.rank() == 0 && options_.ended) options_.ended(job.state.step, {}, error.what());
    if (job.terms.is_last || comm_.rank() != 0) return;
    spdlog::error("{}. Training goes on, and the next save is tried when it is due. {}", error.what(),
                  newest_.empty() ? "Nothing of this run is saved yet."
                                  : fmt::format("The newest checkpoint is {}.", newest_));
  }
}

void Saver::protect() {
  if (!busy()) return;  // all is written
  const Stopwatch watch(stalled_);
  job_->snapshot.protect();
}

void Saver::collect() {
  if (!done_.valid()) return;
  done_.get();
  copied_ += job_->snapshot.copied_bytes();
  job_.reset();
}

void Saver::finish() {
  const Stopwatch watch(stalled_);
  collect();
  if (failure_) throw NotSaved(*failure_);
}

bool Saver::busy() const {
  return done_.valid() && done_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace pptrain::checkpoint

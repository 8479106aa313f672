#include "parallel/comm/sum_queue.h"

#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/signal_block.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {

// a + b has the bits of b + a, so the sum may start in either operand.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size) {
  if (me == 0) {
    for (int r = 1; r < size; ++r) own.add_(others.select(0, r));
    return;
  }
  at::Tensor sum = others.select(0, 0);
  for (int r = 1; r < me; ++r) sum.add_(others.select(0, r));
  own.add_(sum);
  for (int r = me + 1; r < size; ++r) own.add_(others.select(0, r));
}

namespace {

// How long a queue that is to give up may go on.
constexpr std::chrono::milliseconds look_every{100};

}  // namespace

struct SumQueue::Job {
  const char* name;
  std::vector<at::Tensor> tensors;
  std::chrono::milliseconds timeout;
  Body body;
  c10::Device device = at::kCPU;
  std::optional<c10::Event> ready;     // GPU: what the caller's stream held when the job was started
  std::optional<c10::Event> finished;  // GPU: the end of the job's work
  bool done = false;
  std::exception_ptr error;
};

// `jobs` and the outcome of each are guarded by `mutex`.
struct SumQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  std::exception_ptr failure;  // of the first job that failed
  bool closing = false;
  bool give_up = false;
};

class SumQueue::JobWork final : public Work {
 public:
  JobWork(std::shared_ptr<State> state, std::shared_ptr<Job> job)
      : state_(std::move(state)), job_(std::move(job)) {}

  bool done() override {
    const std::lock_guard lock(state_->mutex);
    if (job_->error) fail("");
    return job_->done && (!job_->finished || job_->finished->query());
  }

  // Every message of the job has its timeout, so the job ends.
  void wait(const std::function<std::string()>& what) override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return job_->done; });
    if (job_->error) fail(what ? what() : "");
    if (job_->finished) {
      const c10::impl::VirtualGuardImpl guard_impl(job_->device.type());
      job_->finished->block(guard_impl.getStream(job_->device));
    }
  }

  bool wait_for(std::chrono::milliseconds time) override {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, time, [this] { return job_->done; });
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    const auto text = [&](const std::exception& e) {
      return fmt::format("{}: {}{}{}", job_->name, e.what(), what.empty() ? "" : ": ", what);
    };
    try {
      std::rethrow_exception(job_->error);
    } catch (const PeerFailure& e) {
      throw PeerFailure(text(e));
    } catch (const WaitTimeout& e) {
      throw WaitTimeout(text(e));
    } catch (const std::exception& e) {
      throw Error(text(e));
    }
  }

  std::shared_ptr<State> state_;
  std::shared_ptr<Job> job_;
};

SumQueue::SumQueue(std::unique_ptr<Communicator> comm)
    : comm_(std::move(comm)), state_(std::make_shared<State>()), unwinding_(std::uncaught_exceptions()) {
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

SumQueue::~SumQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->give_up = std::uncaught_exceptions() > unwinding_;
  }
  state_->changed.notify_all();
  thread_.join();
}

std::unique_ptr<Work> SumQueue::start(const char* name, std::vector<at::Tensor> tensors,
                                      std::chrono::milliseconds timeout, Body body) {
  auto job = std::make_shared<Job>();
  job->name = name;
  job->tensors = std::move(tensors);
  job->timeout = timeout;
  job->body = std::move(body);
  job->device = job->tensors.front().device();
  if (!job->device.is_cpu()) {
    job->ready.emplace(job->device.type());
    job->ready->record(c10::impl::VirtualGuardImpl(job->device.type()).getStream(job->device));
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->jobs.push_back(job);
  }
  state_->changed.notify_all();
  return std::make_unique<JobWork>(state_, std::move(job));
}

void SumQueue::run() {
  const c10::InferenceMode inference;
  std::unique_lock lock(state_->mutex);
  while (true) {
    state_->changed.wait(lock, [this] { return state_->closing || !state_->jobs.empty(); });
    if (state_->give_up) return drop_jobs();
    if (state_->jobs.empty()) return;
    Job& job = *state_->jobs.front();
    std::exception_ptr error = state_->failure;
    lock.unlock();
    if (!error) {
      try {
        run_job(job);
      } catch (...) {
        error = std::current_exception();
      }
    }
    // Let go before the owner goes on, which is then the last to hold them.
    job.body = nullptr;
    job.tensors.clear();
    lock.lock();
    job.error = state_->failure = error;
    job.done = true;
    state_->jobs.pop_front();
    state_->changed.notify_all();
  }
}

// Under the lock.
void SumQueue::drop_jobs() {
  for (const auto& job : std::exchange(state_->jobs, {})) {
    job->error = std::make_exception_ptr(Error("its communicator is gone"));
    job->done = true;
  }
  state_->changed.notify_all();
}

void SumQueue::run_job(Job& job) {
  const Patience patience = [&](Work& work, const char* what) { wait(work, what, job.timeout); };
  if (job.device.is_cpu()) return job.body(*comm_, patience);
  const c10::impl::VirtualGuardImpl guard_impl(job.device.type());
  if (!stream_ || stream_->device() != job.device) {
    stream_ = guard_impl.getStreamFromGlobalPool(job.device);
  }
  const c10::StreamGuard guard(*stream_);
  job.ready->block(*stream_);
  job.body(*comm_, patience);
  for (const at::Tensor& tensor : job.tensors) {
    if (tensor.numel() > 0) guard_impl.recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
  }
  job.finished.emplace(job.device.type());
  job.finished->record(*stream_);
}

void SumQueue::wait(Work& work, const char* what, std::chrono::milliseconds timeout) {
  PatientDeadline deadline(timeout);
  while (!work.wait_for(std::min(look_every, timeout))) {
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->give_up) throw Error("given up: the rank has failed");
    }
    if (deadline.passed()) {
      throw WaitTimeout(timeout_message(comm_->rank(), timeout, "the other ranks of its group", what));
    }
  }
  wait_for_message(work, what);
}

}  // namespace pptrain::comm

#include "parallel/comm/message_communicator.h"

#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/threads.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/timed_wait.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

// How long a queue that is to give up may go on.
constexpr std::chrono::milliseconds give_up_within{100};

// A collective that waits for its turn, or has it.
struct Job {
  const char* name;
  std::vector<at::Tensor> tensors;    // what `body` reads and writes, all on one device
  std::chrono::milliseconds timeout;  // of each of its messages
  // A collective on the queue's communicator, which waits with `wait`.
  std::function<void(Communicator& comm, const Patience& wait)> body;
  c10::Device device = at::kCPU;
  std::optional<c10::Event> ready{};     // GPU: what the caller's stream held when the job was started
  std::optional<c10::Event> finished{};  // GPU: the end of the job's work
  bool done = false;
  std::exception_ptr error{};
};

// `jobs` and the outcome of each are guarded by `mutex`.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  std::exception_ptr failure;  // of the first job that failed
  bool closing = false;
  bool give_up = false;
};

class JobWork final : public Work {
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
    const TimedWait timed;
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return job_->done; });
    if (job_->error) fail(what ? what() : "");
    if (job_->finished) {
      const c10::impl::VirtualGuardImpl guard_impl(job_->device.type());
      job_->finished->block(guard_impl.getStream(job_->device));
    }
  }

  bool wait_for(std::chrono::milliseconds time) override {
    const TimedWait timed;
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

}  // namespace

// Runs the collectives of one communicator that take several exchanges, one after another, while the caller
// computes.
class SumQueue {
 public:
  // comm: a lane that nothing else uses.
  explicit SumQueue(std::unique_ptr<Communicator> comm) : comm_(std::move(comm)) {
    const SignalBlock block;
    thread_ = std::jthread([this] { run(); });
  }

  // Finishes what is under way, except while an exception unwinds: then it gives up within 100 ms.
  ~SumQueue() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->closing = true;
      state_->give_up = std::uncaught_exceptions() > unwinding_;
    }
    state_->changed.notify_all();
    thread_.join();
  }

  SumQueue(const SumQueue&) = delete;
  SumQueue& operator=(const SumQueue&) = delete;

  // Runs the job after all that were started before; on a GPU on a stream of its own, after what the current
  // stream holds now. Once one job has failed, all later ones fail with the same error.
  std::unique_ptr<Work> start(Job started) {
    auto job = std::make_shared<Job>(std::move(started));
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

 private:
  void run() {
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
      // Released before the owner goes on, which is then the last to hold them.
      job.body = nullptr;
      job.tensors.clear();
      lock.lock();
      job.error = state_->failure = error;
      job.done = true;
      state_->jobs.pop_front();
      state_->changed.notify_all();
    }
  }

  void run_job(Job& job) {
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

  // Under the lock.
  void drop_jobs() {
    for (const auto& job : std::exchange(state_->jobs, {})) {
      job->error = std::make_exception_ptr(Error("its communicator is gone"));
      job->done = true;
    }
    state_->changed.notify_all();
  }

  void wait(Work& work, const char* what, std::chrono::milliseconds timeout) {
    PatientDeadline deadline(timeout);
    while (!work.wait_for(std::min(give_up_within, timeout))) {
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

  std::unique_ptr<Communicator> comm_;
  // Shared with the works, which may outlive the queue.
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::optional<c10::Stream> stream_;  // GPU: of the thread's work
  int unwinding_ = std::uncaught_exceptions();
  std::jthread thread_;
};

MessageCommunicator::MessageCommunicator(std::chrono::milliseconds timeout) : timeout_(timeout) {}

MessageCommunicator::~MessageCommunicator() = default;

Communicator& MessageCommunicator::collectives() {
  if (!collectives_) collectives_ = on_lane(Lane::collectives);
  return *collectives_;
}

SumQueue& MessageCommunicator::sums() {
  if (!sums_) sums_ = std::make_unique<SumQueue>(on_lane(Lane::sums));
  return *sums_;
}

void MessageCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  if (collectives_) collectives_->set_timeout(timeout);
}

void MessageCommunicator::all_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "all_reduce_sum");
  if (size() == 1 || tensor.numel() == 0) return;
  const c10::InferenceMode inference;
  run_all_reduce_sum(collectives(), host_blocks(), tensor.view({-1}), wait_for_message);
}

void MessageCommunicator::broadcast(at::Tensor tensor, int root) {
  check_contiguous(tensor, "broadcast");
  check_root(root, size());
  if (size() > 1 && tensor.numel() > 0) run_broadcast(collectives(), std::move(tensor), root);
}

void MessageCommunicator::barrier() {
  if (size() > 1) run_barrier(collectives());
}

void MessageCommunicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  check_contiguous(out, "all_gather");
  check_rows(out, tensor, size());
  if (size() == 1) return copy_own_part(out.view({-1}), tensor.view({-1}));
  run_all_gather_rows(collectives(), out.view({-1}), tensor.view({-1}));
}

std::unique_ptr<Work> MessageCommunicator::start_all_reduce_sum(at::Tensor tensor) {
  return sums().start({.name = "iall_reduce_sum",
                       .tensors = {tensor},
                       .timeout = timeout_,
                       .body = [tensor, blocks = host_blocks()](Communicator& lane, const Patience& wait) {
                         run_all_reduce_sum(lane, blocks, tensor, wait);
                       }});
}

std::unique_ptr<Work> MessageCommunicator::start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                                    Counts counts,
                                                                    std::span<const int> order) {
  return sums().start({.name = "ireduce_scatter_sum",
                       .tensors = {out, tensor},
                       .timeout = timeout_,
                       .body = [out, parts = Parts(tensor, counts, order), blocks = host_blocks()](
                                   Communicator& lane, const Patience& wait) {
                         run_reduce_scatter_sum(lane, blocks, out, parts, wait);
                       }});
}

std::unique_ptr<Work> MessageCommunicator::start_all_gather(at::Tensor out, at::Tensor tensor,
                                                            Counts counts) {
  const Parts parts(out, counts);
  if (!host_blocks().two_steps()) return comm::start_all_gather(collectives(), parts, tensor);
  return sums().start(
      {.name = "iall_gather",
       .tensors = {out, tensor},
       .timeout = timeout_,
       .body = [tensor, parts, blocks = host_blocks()](Communicator& lane, const Patience& wait) {
         run_all_gather(lane, blocks, parts, tensor, wait);
       }});
}

std::unique_ptr<Work> MessageCommunicator::start_all_to_all(at::Tensor out, std::vector<int64_t> from,
                                                            at::Tensor tensor, std::vector<int64_t> to) {
  return comm::start_all_to_all(collectives(), std::move(out), from, tensor, to);
}

}  // namespace pptrain::comm

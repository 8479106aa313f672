#include "parallel/comm/thread/thread_communicator.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/split.h"
#include "parallel/comm/timed_wait.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Where the threads of a rank sleep: its own, and those that run its sums. Notified when one of its
// operations completes or the world fails.
struct Signal {
  std::mutex mutex;
  std::condition_variable wake;
};

// One side of a message. `done`, `error` and `awaited` are guarded by the owner's signal; `finished` is set
// by the copying thread.
struct Operation {
  Operation(at::Tensor t, Signal& s) : tensor(std::move(t)), device(tensor.device()), owner(s) {}
  at::Tensor tensor;
  const c10::Device device;
  Signal& owner;
  std::optional<c10::Event> ready;       // CUDA: recorded when the operation was posted
  std::shared_ptr<c10::Event> finished;  // CUDA: recorded after the copy
  bool done = false;
  int awaited = 0;  // by so many threads that sleep
  std::string error;
};
using OperationPtr = std::shared_ptr<Operation>;

// The messages of one directed pair on one lane.
struct Mailbox {
  std::list<OperationPtr> waiting;  // sends or receives: if both are there, they have met
  bool waiting_sends = false;
  std::mutex stream_mutex;  // one CUDA copy is enqueued at a time
  std::optional<c10::Stream> from_stream;
  std::optional<c10::Stream> to_stream;
};

// Wakes no thread that waits for something else.
void complete(Operation& operation, const std::string& error) {
  bool awaited = false;
  {
    const std::lock_guard lock(operation.owner.mutex);
    // Before `done`: the owner, which goes on then, is the last to let the tensor go.
    operation.tensor.reset();
    operation.error = error;
    operation.done = true;
    awaited = operation.awaited > 0;
  }
  if (awaited) operation.owner.wake.notify_all();
}

// Enqueues the copy on side streams of the two devices, after both operations' `ready`.
void copy_on_device(Mailbox& box, Operation& send, Operation& receive) {
  const c10::impl::VirtualGuardImpl guard_impl(send.tensor.device().type());
  const std::lock_guard lock(box.stream_mutex);
  const auto side_stream = [&](std::optional<c10::Stream>& stream, c10::Device device) {
    if (!stream || stream->device() != device) stream = guard_impl.getStreamFromGlobalPool(device);
    return *stream;
  };
  const c10::Stream to = side_stream(box.to_stream, receive.tensor.device());
  const c10::Stream from =
      send.tensor.device() == to.device() ? to : side_stream(box.from_stream, send.tensor.device());
  // A copy between devices runs on the source's stream and orders the destination's after it.
  const c10::StreamGuard from_guard(from);
  const c10::StreamGuard to_guard(to);
  const c10::InferenceMode inference;
  for (const c10::Stream& stream : {from, to}) {
    send.ready->block(stream);
    receive.ready->block(stream);
  }
  receive.tensor.copy_(send.tensor, /*non_blocking=*/true);
  auto finished = std::make_shared<c10::Event>(to.device_type());
  finished->record(to);
  for (const at::Tensor* tensor : {&send.tensor, &receive.tensor}) {
    guard_impl.recordDataPtrOnStream(tensor->storage().data_ptr(), from);
    if (from != to) guard_impl.recordDataPtrOnStream(tensor->storage().data_ptr(), to);
  }
  send.finished = finished;
  receive.finished = finished;
}

void transfer(Mailbox& box, Operation& send, Operation& receive) {
  std::string error;
  if (send.tensor.scalar_type() != receive.tensor.scalar_type() ||
      send.tensor.numel() != receive.tensor.numel() ||
      send.tensor.device().type() != receive.tensor.device().type()) {
    error = fmt::format("a message does not fit its receive: {} was sent, {} was expected",
                        describe(send.tensor), describe(receive.tensor));
  } else if (send.tensor.is_cpu()) {
    const size_t bytes = send.tensor.nbytes();  // an empty tensor may have no address
    if (bytes > 0) std::memcpy(receive.tensor.mutable_data_ptr(), send.tensor.const_data_ptr(), bytes);
  } else {
    try {
      copy_on_device(box, send, receive);
    } catch (const std::exception& e) {
      error = fmt::format("copying {} to {} failed: {}", describe(send.tensor), describe(receive.tensor),
                          e.what());
    }
  }
  complete(send, error);
  complete(receive, error);
}

// What is sent to one rank of a communicator. A mailbox is made when it is first used: of the pairs of a
// large group most never exchange anything.
struct Inbox {
  std::mutex mutex;  // guards what waits in the boxes too
  std::unordered_map<int, Mailbox> boxes;
};

// The ranks of one communicator, as world ranks, and their inboxes.
struct ThreadGroup {
  explicit ThreadGroup(std::vector<int> ranks) : members(std::move(ranks)), inboxes(members.size()) {}
  const std::vector<int> members;
  std::deque<Inbox> inboxes;
};

struct World {
  explicit World(int size) : signals(size) {}

  // The first call wins; wakes all waiting threads.
  bool fail(int rank, const std::string& message) {
    {
      const std::lock_guard lock(mutex);
      if (failed) return false;
      failure = fmt::format("rank {} failed: {}", rank, message);
      failed = true;
    }
    for (Signal& signal : signals) {
      const std::lock_guard lock(signal.mutex);
      signal.wake.notify_all();
    }
    return true;
  }

  void throw_if_failed() {
    if (!failed) return;
    const std::lock_guard lock(mutex);
    throw PeerFailure(failure);
  }

  // A group of some ranks of `parent`: made by the first of them to come, given to each of them once.
  std::shared_ptr<ThreadGroup> meet(const ThreadGroup& parent, uint64_t number,
                                    std::span<const int> members) {
    const std::lock_guard lock(mutex);
    const auto key = std::make_pair(&parent, number);
    auto& [group, taken] = meeting[key];
    if (!group) {
      std::vector<int> ranks;
      for (const int member : members) ranks.push_back(parent.members[member]);
      group = std::make_shared<ThreadGroup>(std::move(ranks));
    }
    const auto result = group;
    if (++taken == members.size()) meeting.erase(key);
    return result;
  }

  std::deque<Signal> signals;
  std::atomic<bool> failed = false;
  std::mutex mutex;
  std::string failure;
  std::map<std::pair<const ThreadGroup*, uint64_t>, std::pair<std::shared_ptr<ThreadGroup>, size_t>> meeting;
};

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<World> world, std::shared_ptr<ThreadGroup> group, OperationPtr operation,
             int rank, int peer, bool is_send, std::chrono::milliseconds timeout)
      : world_(std::move(world)),
        group_(std::move(group)),
        operation_(std::move(operation)),
        rank_(rank),
        peer_(peer),
        is_send_(is_send),
        timeout_(timeout) {}

  bool done() override {
    const std::lock_guard lock(operation_->owner.mutex);
    if (!operation_->done) world_->throw_if_failed();
    return operation_->done && (!operation_->finished || operation_->finished->query());
  }

  bool wait_for(std::chrono::milliseconds time) override {
    const TimedWait timed;
    std::unique_lock lock(operation_->owner.mutex);
    return ends_by(Clock::now() + time, lock);
  }

  void wait(const std::function<std::string()>& what) override {
    const TimedWait timed;
    std::unique_lock lock(operation_->owner.mutex);
    PatientDeadline deadline(timeout_);
    bool ended = ends_by(deadline.next_look(), lock);
    while (!ended && !deadline.passed()) ended = ends_by(deadline.next_look(), lock);
    if (!operation_->done) {
      lock.unlock();
      world_->throw_if_failed();
      if (!ended)
        throw WaitTimeout(
            timeout_message(rank_, timeout_, describe_message(is_send_, peer_), what ? what() : ""));
    }
    if (!operation_->error.empty()) {
      throw Error(fmt::format("rank {}, {}: {}{}{}", rank_, describe_message(is_send_, peer_),
                              operation_->error, what ? ": " : "", what ? what() : ""));
    }
    if (operation_->finished) {
      const c10::impl::VirtualGuardImpl guard_impl(operation_->device.type());
      operation_->finished->block(guard_impl.getStream(operation_->device));
    }
  }

 private:
  bool ends_by(Clock::time_point time, std::unique_lock<std::mutex>& lock) {
    ++operation_->awaited;
    const bool ended =
        operation_->owner.wake.wait_until(lock, time, [&] { return operation_->done || world_->failed; });
    --operation_->awaited;
    return ended;
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<ThreadGroup> group_;
  OperationPtr operation_;
  int rank_;
  int peer_;
  bool is_send_;
  std::chrono::milliseconds timeout_;
};

class ThreadCommunicator final : public MessageCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<World> world, std::shared_ptr<ThreadGroup> group, int rank,
                     std::chrono::milliseconds timeout, Lane lane = Lane::messages)
      : MessageCommunicator(timeout),
        world_(std::move(world)),
        group_(std::move(group)),
        rank_(rank),
        lane_(lane) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->members.size()); }

  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_peer(destination, rank_, size(), "isend");
    return post(tensor, rank_, destination, /*is_send=*/true);
  }

  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_peer(source, rank_, size(), "irecv");
    return post(std::move(tensor), source, rank_, /*is_send=*/false);
  }

  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    const int place = place_in_group(members, rank_, size());
    auto group = world_->meet(*group_, next_group(members, groups_), members);
    return std::make_unique<ThreadCommunicator>(world_, std::move(group), place, timeout());
  }

  void abort(const std::string& message) override { world_->fail(world_rank(), message); }
  std::string failure() const override {
    const std::lock_guard lock(world_->mutex);
    return world_->failure;
  }

 private:
  std::unique_ptr<Communicator> on_lane(Lane lane) const override {
    return std::make_unique<ThreadCommunicator>(world_, group_, rank_, timeout(), lane);
  }

  int world_rank() const { return group_->members[rank_]; }

  std::unique_ptr<Work> post(at::Tensor tensor, int from, int to, bool is_send) {
    check_contiguous(tensor, is_send ? "isend" : "irecv");
    world_->throw_if_failed();
    const auto mine = std::make_shared<Operation>(std::move(tensor), world_->signals[world_rank()]);
    if (const c10::Device device = mine->device; !device.is_cpu()) {
      mine->ready.emplace(device.type());
      mine->ready->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    auto work = std::make_unique<ThreadWork>(world_, group_, mine, world_rank(),
                                             group_->members[is_send ? to : from], is_send, timeout());
    Inbox& inbox = group_->inboxes[to];
    std::unique_lock lock(inbox.mutex);
    Mailbox& box = inbox.boxes[from * lane_count + static_cast<int>(lane_)];
    if (box.waiting.empty() || box.waiting_sends == is_send) {
      box.waiting_sends = is_send;
      box.waiting.push_back(mine);
      return work;
    }
    const OperationPtr other = std::move(box.waiting.front());
    box.waiting.pop_front();
    lock.unlock();
    is_send ? transfer(box, *mine, *other) : transfer(box, *other, *mine);
    return work;
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  Lane lane_;
  GroupCounts groups_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_world(int size) {
  if (size < 1) throw Error(fmt::format("a world needs at least one rank, not {}", size));
  const auto world = std::make_shared<World>(size);
  const auto all = std::make_shared<ThreadGroup>(all_ranks(size));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<ThreadCommunicator>(world, all, rank, default_timeout));
  return ranks;
}

void run_on_threads(int first, int end, const std::function<void(int)>& body,
                    const std::function<void(int, const std::string&)>& failed) {
  std::mutex mutex;
  std::exception_ptr cause;        // of the rank that failed first
  std::exception_ptr consequence;  // of a rank that stopped because another did
  const auto keep = [&](std::exception_ptr& slot, std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!slot) slot = std::move(error);
  };
  const auto run = [&](int rank) {
    try {
      body(rank);
    } catch (const PeerFailure& e) {
      keep(consequence, std::current_exception());
      failed(rank, e.what());
    } catch (const std::exception& e) {
      keep(cause, std::current_exception());
      failed(rank, e.what());
    } catch (...) {
      keep(cause, std::current_exception());
      failed(rank, "unknown exception");
    }
  };
  const auto start = [&](std::vector<std::jthread>& threads, int rank) {
    try {
      threads.emplace_back(run, rank);
      return true;
    } catch (const std::system_error& e) {
      const std::string text = fmt::format(
          "cannot start the thread of rank {}: {}. The limit on processes (ulimit -u, the container's pids) "
          "must leave room for all {} ranks and their threads",
          rank, e.what(), end - first);
      keep(cause, std::make_exception_ptr(Error(text)));
      failed(rank, text);
      return false;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = first; rank < end && start(threads, rank); ++rank) {
    }
  }
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

void run_thread_ranks(int size, const std::function<void(Communicator&)>& rank_main) {
  std::vector<std::unique_ptr<Communicator>> world = make_thread_world(size);
  const auto run = [&](int rank) {
    rank_main(*world[rank]);
    world[rank].reset();
  };
  run_on_threads(0, size, run, [&](int rank, const std::string& why) {
    world[rank]->abort(why);
    world[rank].reset();
  });
}

}  // namespace pptrain::comm

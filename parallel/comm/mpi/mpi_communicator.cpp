// MPI's C interface alone: the C++ bindings of old are switched off, so that only the C library is linked.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "parallel/comm/mpi/mpi_communicator.h"

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/text.h"
#include "core/base/threads.h"
#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/timed_wait.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Counts of MPI calls are ints: larger messages travel as several.
constexpr int64_t chunk_bytes = int64_t{1} << 30;

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{} failed: {}", call, std::string(text, length)));
}

// Polling that leaves the processor to others: a short spin, then yields, then naps that grow to 200 us, or
// to a thousandth of the wait so far (5 ms at most). If other threads had the core after a yield, the host is
// busy. A thread that yields then waits for whole time slices of the others, but one that sleeps is woken
// before they end.
class Backoff {
 public:
  void pause() {
    ++rounds_;
    if (rounds_ < spins) return;
    const auto now = Clock::now();
    if (rounds_ == spins) start_ = now;
    if (rounds_ < spins + yields && !busy_) {
      sched_yield();
      busy_ = Clock::now() - now > others_turn;
      return;
    }
    std::this_thread::sleep_for(nap_);
    const auto longest = std::clamp<Clock::duration>((now - start_) / 1000, std::chrono::microseconds(200),
                                                     std::chrono::milliseconds(5));
    nap_ = std::min<Clock::duration>(nap_ * 2, longest);
  }
  // A look at the clock costs little beside a round once the spin is over.
  bool spin_is_over() const { return rounds_ >= spins; }

 private:
  static constexpr int spins = 100;
  static constexpr int yields = 2000;
  static constexpr std::chrono::microseconds others_turn{50};
  int rounds_ = 0;
  bool busy_ = false;
  Clock::time_point start_;
  Clock::duration nap_ = std::chrono::microseconds(10);
};

// The tags of messages: the lane, the message's number between two ranks (modulo 16), and its size. So a
// receive never meets a message of another size, whatever a peer sends: some MPIs write beyond the receive's
// memory then (Open MPI 4.1.4 over CMA and over its TCP, from some KiB up). The size counts modulo an odd
// number, 44,739,241 with Open MPI: of larger messages, sizes that differ by exactly a multiple of it look
// alike, and are left to MPI's own check.
class Tags {
 public:
  Tags() {
    int* most = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found), "MPI_Comm_get_attr");
    const int64_t tags = int64_t{found ? *most : 32767} + 1;  // what the standard grants
    sizes_ = (tags / places - 1) | 1;
    if (sizes_ * places > tags) sizes_ -= 2;
  }
  int of(Lane lane, uint32_t number, int64_t bytes) const {
    const int64_t place = number % numbers * lane_count + static_cast<int64_t>(lane);
    return static_cast<int>(bytes % sizes_ * places + place);
  }
  // Whether two messages have the same place: then only their sizes may differ.
  static bool same_place(int a, int b) { return a % places == b % places; }

 private:
  static constexpr int64_t numbers = 16;
  static constexpr int places = static_cast<int>(numbers) * lane_count;
  int64_t sizes_ = 1;
};

// The requests of one message, with its memory.
struct Transfer {
  at::Tensor tensor;
  std::vector<MPI_Request> requests;
  int64_t expected_last = 0;  // bytes of the last chunk, checked on receives
  bool is_send = false;
  int peer = 0;
  int tag = 0;
  bool pending = false;  // counted by the session
  int other_bytes = -1;  // of a message that came in the place of the one that is waited for

  bool test() {
    while (!requests.empty()) {
      int complete = 0;
      MPI_Status status;
      check(MPI_Test(&requests.front(), &complete, &status), is_send ? "a send" : "a receive");
      if (!complete) return false;
      if (!is_send) check_status(status);
      requests.erase(requests.begin());
    }
    return true;
  }

  void check_status(const MPI_Status& status) const {
    int cancelled = 0;
    check(MPI_Test_cancelled(&status, &cancelled), "MPI_Test_cancelled");
    if (cancelled) throw Error(size_error(other_bytes));
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
    const int64_t expected = requests.size() == 1 ? expected_last : chunk_bytes;
    if (count != expected) throw Error(size_error(count));
  }

  std::string size_error(int64_t count) const {
    return fmt::format("a message from rank {} has {} bytes where {} were expected: {} is to be received",
                       peer, count, tensor.nbytes(), describe(tensor));
  }
};

// MPI_Init to MPI_Finalize; shared by all communicators.
//
// MPI moves a message only while the process is inside a call. Between hosts, or on one host if the kernel
// forbids reading another process' memory, a message of more than some KiB would wait until its sender has
// finished computing. So a thread calls MPI every half millisecond while something is under way and no thread
// waits inside MPI anyway.
class Session {
 public:
  Session() {
    int initialized = 0;
    check(MPI_Initialized(&initialized), "MPI_Initialized");
    if (initialized) throw Error("MPI is initialised already: one MPI world per process");
    // Open MPI's TCP without its emulated puts (flag 1: sends alone), which move one direction at a time: two
    // ranks that send to each other take twice as long over a slow link. What the user has set stands.
    setenv("OMPI_MCA_btl_tcp_flags", "1", /*overwrite=*/0);
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
      throw Error("this MPI cannot be called by several threads in turn (MPI_THREAD_SERIALIZED)");
    }
    tags.emplace();
    const SignalBlock block;
    thread_ = std::jthread([this] { run(); });
  }
  ~Session() {
    {
      const std::lock_guard lock(mutex);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (!failed && std::uncaught_exceptions() <= unwinding_) MPI_Finalize();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Under the lock, as all that follows.
  bool test(Transfer& transfer) {
    try {
      if (!transfer.test()) return false;
    } catch (const Error&) {
      forget(transfer);
      throw;
    }
    forget(transfer);
    return true;
  }

  // After a first test().
  void count(Transfer& transfer) {
    transfer.pending = true;
    ++pending_;
    wake_thread();
  }

  // A thread that waits for a transfer calls MPI all the time: the session's own need not.
  void begin_wait() { ++waiting_; }
  void end_wait() {
    --waiting_;
    wake_thread();
  }

  std::optional<Tags> tags;
  std::mutex mutex;     // one thread at a time calls MPI
  bool failed = false;  // after a failed wait, collective clean-up could hang

 private:
  bool has_work() const { return pending_ > 0 && waiting_ == 0; }
  void wake_thread() {
    if (idle_ && has_work()) wake_.notify_all();
  }
  void forget(Transfer& transfer) {
    if (std::exchange(transfer.pending, false)) --pending_;
  }

  void run() {
    constexpr std::chrono::microseconds period{500};
    constexpr int calls = 4;  // a message takes several steps of its protocol
    std::unique_lock lock(mutex);
    while (!stop_) {
      idle_ = true;
      wake_.wait(lock, [this] { return stop_ || has_work(); });
      idle_ = false;
      int found = 0;
      for (int i = 0; i < calls && !stop_; ++i) {
        // Errors show on the transfers.
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
      }
      wake_.wait_for(lock, period, [this] { return stop_; });
    }
  }

  int unwinding_ = std::uncaught_exceptions();
  int pending_ = 0;
  int waiting_ = 0;
  bool idle_ = false;
  bool stop_ = false;
  std::condition_variable wake_;
  std::jthread thread_;
};

// One MPI communicator, and the transfers whose Work is gone before they were complete.
struct Channel {
  Channel(MPI_Comm c, std::shared_ptr<Session> s) : comm(c), session(std::move(s)) {
    const std::lock_guard lock(session->mutex);
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~Channel() {
    if (session->failed || std::uncaught_exceptions() > unwinding) return;
    const auto deadline = Clock::now() + std::chrono::seconds(5);
    const std::lock_guard lock(session->mutex);
    while (!abandoned.empty() && Clock::now() < deadline) {
      sweep();
      sched_yield();
    }
    MPI_Comm_free(&comm);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Under the session's lock.
  void sweep() noexcept {
    abandoned.remove_if([this](Transfer& transfer) {
      try {
        return session->test(transfer);
      } catch (const Error&) {
        return true;
      }
    });
  }

  MPI_Comm comm;
  std::shared_ptr<Session> session;
  std::list<Transfer> abandoned;
  int unwinding = std::uncaught_exceptions();
};

class MpiWork final : public Work {
 public:
  MpiWork(std::shared_ptr<Channel> channel, Transfer transfer, int rank, std::chrono::milliseconds timeout)
      : channel_(std::move(channel)), transfer_(std::move(transfer)), rank_(rank), timeout_(timeout) {}
  ~MpiWork() override {
    const std::lock_guard lock(channel_->session->mutex);
    if (!transfer_.requests.empty()) channel_->abandoned.push_back(std::move(transfer_));
  }
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;

  bool done() override {
    const std::lock_guard lock(channel_->session->mutex);
    return channel_->session->test(transfer_);
  }

  void wait(const std::function<std::string()>& what) override {
    const TimedWait timed;
    Session& session = *channel_->session;
    std::unique_lock lock(session.mutex);
    if (!poll_for(timeout_, lock)) {
      session.failed = true;
      throw WaitTimeout(timeout_message(rank_, timeout_, describe_message(transfer_.is_send, transfer_.peer),
                                        what ? what() : ""));
    }
    transfer_.tensor.reset();
  }

  bool wait_for(std::chrono::milliseconds time) override {
    const TimedWait timed;
    std::unique_lock lock(channel_->session->mutex);
    return poll_for(time, lock);
  }

 private:
  static constexpr int looks_every = 32;  // rounds of a wait that has grown patient

  // True once the transfer is complete; false after `time`. Under the lock, which others get in between.
  bool poll_for(std::chrono::milliseconds time, std::unique_lock<std::mutex>& lock) {
    Session& session = *channel_->session;
    if (session.test(transfer_)) return true;
    session.begin_wait();
    const auto end = c10::make_scope_exit([&] { session.end_wait(); });
    PatientDeadline deadline(time);
    Backoff backoff;
    for (int round = 1; !session.test(transfer_); ++round) {
      lock.unlock();
      backoff.pause();
      lock.lock();
      if (!backoff.spin_is_over()) continue;
      if (deadline.passed()) return false;
      if (!transfer_.is_send && round % looks_every == 0) look_for_misfit();
    }
    return true;
  }

  // Looks for a message of another size in the place of the one that is waited for, and throws Error if it
  // finds one. Under the lock.
  void look_for_misfit() {
    int found = 0;
    MPI_Status status;
    const MPI_Comm comm = channel_->comm;
    check(MPI_Iprobe(transfer_.peer, MPI_ANY_TAG, comm, &found, &status), "MPI_Iprobe");
    if (!found || status.MPI_TAG == transfer_.tag || !Tags::same_place(status.MPI_TAG, transfer_.tag)) return;
    check(MPI_Get_count(&status, MPI_BYTE, &transfer_.other_bytes), "MPI_Get_count");
    // The message's place is this one, and not one of a later round, if this receive has met no message yet:
    // then it can be cancelled.
    for (MPI_Request& request : transfer_.requests) check(MPI_Cancel(&request), "MPI_Cancel");
    try {
      channel_->session->test(transfer_);
    } catch (const Error&) {
      transfer_.requests.erase(transfer_.requests.begin());
      if (!transfer_.requests.empty()) channel_->abandoned.push_back(transfer_);
      transfer_.requests.clear();
      channel_->abandoned.push_back(take_misfit(status.MPI_TAG));
      throw;
    }
  }

  // Receives the misfit: its sender waits until it is taken.
  Transfer take_misfit(int tag) const {
    Transfer other;
    other.peer = transfer_.peer;
    other.tensor = at::empty({transfer_.other_bytes}, at::kByte);
    other.expected_last = transfer_.other_bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(other.tensor.mutable_data_ptr(), transfer_.other_bytes, MPI_BYTE, other.peer, tag,
                    channel_->comm, &request),
          "MPI_Irecv");
    other.requests.push_back(request);
    return other;
  }

  std::shared_ptr<Channel> channel_;
  Transfer transfer_;
  int rank_;
  std::chrono::milliseconds timeout_;
};

// The lanes of a communicator are tags of one MPI communicator.
class MpiCommunicator final : public MessageCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<Channel> channel, std::chrono::milliseconds timeout,
                  Lane lane = Lane::messages)
      : MessageCommunicator(timeout), channel_(std::move(channel)), lane_(lane) {
    const std::lock_guard lock(channel_->session->mutex);
    check(MPI_Comm_rank(channel_->comm, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(channel_->comm, &size_), "MPI_Comm_size");
    sent_.resize(size_);
    received_.resize(size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    return start(tensor, destination, /*is_send=*/true);
  }
  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    return start(std::move(tensor), source, /*is_send=*/false);
  }

  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    place_in_group(members, rank_, size_);
    MPI_Comm part = MPI_COMM_NULL;
    {
      const std::lock_guard lock(channel_->session->mutex);
      MPI_Group own = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
      check(MPI_Comm_group(channel_->comm, &own), "MPI_Comm_group");
      check(MPI_Group_incl(own, static_cast<int>(members.size()), members.data(), &group), "MPI_Group_incl");
      // Members alone take part. Its messages are on MPI_COMM_WORLD, which carries no others: some MPIs give
      // them a tag of the caller's.
      check(MPI_Comm_create_group(MPI_COMM_WORLD, group, /*tag=*/0, &part), "MPI_Comm_create_group");
      MPI_Group_free(&group);
      MPI_Group_free(&own);
    }
    return std::make_unique<MpiCommunicator>(std::make_shared<Channel>(part, channel_->session), timeout());
  }

  void progress() override {
    int flag = 0;
    const std::lock_guard lock(channel_->session->mutex);
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, channel_->comm, &flag, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }

  void abort(const std::string& message) override {
    std::fprintf(stderr, "%s\n", printable(message).c_str());
    std::fflush(stderr);
    const std::lock_guard lock(channel_->session->mutex);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  std::unique_ptr<Communicator> on_lane(Lane lane) const override {
    return std::make_unique<MpiCommunicator>(channel_, timeout(), lane);
  }

  std::unique_ptr<Work> start(at::Tensor tensor, int peer, bool is_send) {
    check_peer(peer, rank_, size_, is_send ? "isend" : "irecv");
    check_cpu(tensor, "MPI");
    const std::lock_guard lock(channel_->session->mutex);
    if (!channel_->abandoned.empty()) channel_->sweep();
    Transfer transfer;
    transfer.tensor = std::move(tensor);
    transfer.is_send = is_send;
    transfer.peer = peer;
    uint32_t& number = (is_send ? sent_ : received_)[peer];
    transfer.tag =
        channel_->session->tags->of(lane_, number++, static_cast<int64_t>(transfer.tensor.nbytes()));
    // A send only reads; MPI's older signatures take a pointer to non-const all the same.
    char* data = static_cast<char*>(is_send ? const_cast<void*>(transfer.tensor.const_data_ptr())
                                            : transfer.tensor.mutable_data_ptr());
    int64_t left = static_cast<int64_t>(transfer.tensor.nbytes());
    do {
      const int count = static_cast<int>(std::min(left, chunk_bytes));
      MPI_Request request = MPI_REQUEST_NULL;
      check(is_send ? MPI_Isend(data, count, MPI_BYTE, peer, transfer.tag, channel_->comm, &request)
                    : MPI_Irecv(data, count, MPI_BYTE, peer, transfer.tag, channel_->comm, &request),
            is_send ? "MPI_Isend" : "MPI_Irecv");
      transfer.requests.push_back(request);
      transfer.expected_last = count;
      data += count;
      left -= count;
    } while (left > 0);
    if (!channel_->session->test(transfer)) channel_->session->count(transfer);
    return std::make_unique<MpiWork>(channel_, std::move(transfer), rank_, timeout());
  }

  std::shared_ptr<Channel> channel_;
  Lane lane_;
  int rank_ = 0;
  int size_ = 1;
  // Messages to and from each rank, by the same object on both sides: each lane of a communicator has one.
  std::vector<uint32_t> sent_;
  std::vector<uint32_t> received_;
};

}  // namespace

MpiFlavor mpi_flavor() {
#if defined(OMPI_MAJOR_VERSION)
  return MpiFlavor::open_mpi;
#else
  return MpiFlavor::mpich;
#endif
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string version(text, length);
  version.resize(std::min(version.size(), version.find_first_of(",\n")));
  // MPICH's text is a table: "MPICH Version:      4.0.2".
  constexpr std::string_view label = " Version:";
  if (const size_t at = version.find(label); at != std::string::npos) {
    const size_t number = std::min(version.find_first_not_of(' ', at + label.size()), version.size());
    version.replace(at, number - at, " ");
  }
  return version;
}

std::unique_ptr<Communicator> make_mpi_world() {
  auto session = std::make_shared<Session>();
  MPI_Comm world = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(std::make_shared<Channel>(world, std::move(session)),
                                           default_timeout);
}

}  // namespace pptrain::comm

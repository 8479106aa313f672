// Finds a rank that is killed, stopped, unreachable or stuck in the kernel, and ends all the others: no
// matter what moves the tensors, and whatever the rank's own thread is doing.
//
// Each process has one thread for it and two connections, to the previous rank and to the next: a ring, so
// the load of a rank does not grow with the job. Along it go signs of life of each rank with what it is
// doing, the verdict that ends the job, and on demand a roll call of what all ranks do. The verdict goes in
// both directions from rank to rank: every rank that is still reachable has a living neighbour towards each
// gap.
//
// A process that stood still (Ctrl-Z, a paused machine) sees that its own clock has jumped; it then gives its
// neighbours a whole limit from now on, since they may have stood still with it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/comm/liveness/heartbeat_frames.h"
#include "parallel/comm/liveness/ring.h"

namespace pptrain::comm {

// Prints to standard error, as one piece and without waiting for a reader that is gone or stopped.
void print_now(const std::string& text);
// Writes out what standard output still holds in memory, and ends the process; no destructor runs.
[[noreturn]] void end_process(int code);

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    // A rank without a sign of life for so long is dead. Signs come 14 times as often.
    std::chrono::milliseconds limit{7000};
    // For processes that a user started each in a terminal of its own: otherwise only one rank prints.
    bool every_rank_speaks = false;
    // make_ring's own_address.
    std::function<std::string()> address = {};
    // Both are called by the heartbeat's thread, `end` as the last thing it does. By default the text goes to
    // standard error, and the process ends at once: the rank's own thread may be in a call that nothing can
    // interrupt.
    std::function<void(const std::string& text)> say = print_now;
    std::function<void(int code)> end = end_process;
  };

  // Collective over the world. Null on all ranks if the connections could not be made on one of them; rank 0
  // then reports it by `warn`. Called by the rank's own thread, which is watched from then on. `activity`
  // must outlive the heartbeat.
  static std::unique_ptr<Heartbeat> start(Communicator& world, Activity& activity, Options options,
                                          const std::function<void(const std::string&)>& warn);
  // Takes leave: from then on the neighbours expect no signs of life. While an exception unwinds it does not,
  // and the others take this rank for dead.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // What the destructor does, for a process that ends in order without unwinding.
  void leave();

  // This rank has failed: ends the other ranks. True if this rank must report it itself. False if another
  // rank's failure came first: then call end_with_others(). Ranks other than 0 wait 150 ms for that, because
  // often all ranks fail alike.
  bool fail(const std::string& message, int code);
  // Does not return if another rank is dead or has failed and this becomes known within `patience`: the
  // heartbeat's thread ends the process.
  void end_with_others(std::chrono::milliseconds patience);

  // Tells all other ranks that this one was asked to end. Any thread.
  void summon();
  // Calls `heard` in the heartbeat's thread when another rank's summons has come, or now if it has already.
  // Empty: no call is made any more after this returns.
  void on_summons(std::function<void()> heard);

  // Calls `heard` in the heartbeat's thread with what this rank is about to print of a dead or failed one.
  // Empty: no call is made any more after this returns.
  void on_verdict(std::function<void(const std::string&)> heard);

  // What every rank does now; waits for the answers for a second at most. Empty if the ring is broken.
  std::vector<RankState> roll_call();

 private:
  // One of the two connections.
  struct Link {
    net::Socket socket;
    int peer = 0;
    std::string incoming, outgoing;
    bool left = false;  // the peer has taken leave
    Clock::time_point heard = Clock::now();
    Activity::State state;  // of the peer, as of `heard`
  };

  enum class Leave;

  Heartbeat(int rank, Ring ring, Activity& activity, Options options);
  void run();
  Leave leaving();
  void take_leave();
  void wait_for_news();
  void receive(Link& link);
  void take(Link& link, const Frame& frame);
  void take_roll_call(RollCall call);
  void take_requests();
  void take_summons();
  void send(Link& link, const std::string& bytes);
  void flush(Link& link);
  void look(Clock::time_point now);
  void look_at(Link& link, Clock::time_point now);
  void look_at_own_thread(Clock::time_point now);
  void lose(Link& link, int error);
  void accuse(const Link& link, const std::string& what);
  void stood_still(Clock::time_point now);
  enum class Source;
  void decide(Verdict verdict, Source source);
  std::chrono::milliseconds turn_to_speak(const Verdict& verdict, Source source) const;
  bool conclude(Clock::time_point now);
  void speak();
  std::string last_words(const Link& link) const;
  std::string own_words() const;
  void say(const std::string& text);
  void wake();

  const int rank_;
  const int size_;
  const std::vector<std::string> hosts_;
  Activity& activity_;
  const Options options_;
  const std::chrono::milliseconds period_;
  const int unwinding_;
  FileDescriptor wake_;  // an eventfd

  // The thread's own.
  Link previous_, next_;
  KernelSleep kernel_sleep_;
  Clock::time_point next_beat_{}, next_own_look_{};
  std::chrono::milliseconds speak_after_{0};  // of this rank, from decided_at_ on
  bool spoke_ = false;
  bool summons_passed_ = false;  // to the next rank: once
  Clock::time_point decided_at_{}, said_at_{};

  // Between the thread and the rank's.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Verdict> verdict_;
  bool failed_here_ = false;             // the verdict is this rank's own failure
  std::optional<Verdict> own_failure_;   // to be told
  std::optional<uint32_t> wanted_call_;  // to be sent
  uint32_t calls_ = 0;
  bool summons_wanted_ = false;       // to be sent
  bool summoned_ = false;             // by another rank
  std::function<void()> on_summons_;  // called under the mutex, as is on_verdict_
  std::function<void(const std::string&)> on_verdict_;
  std::optional<RollCall> answered_call_;
  Leave leave_{};  // no

  std::jthread thread_;
};

}  // namespace pptrain::comm

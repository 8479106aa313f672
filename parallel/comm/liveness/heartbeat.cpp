#include "parallel/comm/liveness/heartbeat.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/threads.h"
#include "core/base/timing.h"
#include "parallel/comm/agreement.h"

namespace pptrain::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds patience_for_links{10'000};
// If all ranks fail, the first of them reports it.
constexpr milliseconds others_may_be_first{150};
constexpr milliseconds roll_call_time{1000};
constexpr milliseconds look_every{50};
// From the verdict on: the rank that detected it speaks if rank 0, or the other neighbour, has not.
constexpr milliseconds next_speaker_after{500};
// A rank's own thread may end in order, on its own failure, or as a transport tells it of the failure.
constexpr milliseconds end_after_said{300};
constexpr milliseconds end_after_verdict{1600};
constexpr milliseconds end_after_own_failure{5000};
constexpr milliseconds leave_time{1000};
constexpr size_t most_outgoing = size_t{32} << 20;

// Whether the peer's kernel has lately acknowledged what was sent.
bool host_answers(const net::Socket& socket, milliseconds lately) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  return milliseconds(info.tcpi_last_ack_recv) < lately;
}

}  // namespace

enum class Heartbeat::Leave { no, in_order, at_once };

// How this rank knows of a verdict.
enum class Heartbeat::Source { neighbour, detected_ahead, detected_behind, own_failure };

void print_now(const std::string& text) {
  const std::string line =
      fmt::format("{}pptrain: {}\n", isatty(STDERR_FILENO) == 1 ? "\n" : "", printable(text));
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  if (poll(&entry, 1, 200) > 0 && (entry.revents & POLLOUT) != 0) {
    static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  }
}

void end_process(int code) {
  // A thread that prints may itself be stuck.
  if (ftrylockfile(stdout) == 0) {
    pollfd entry{STDOUT_FILENO, POLLOUT, 0};
    if (poll(&entry, 1, 0) > 0) fflush_unlocked(stdout);
  }
  _exit(code);
}

std::unique_ptr<Heartbeat> Heartbeat::start(Communicator& world, Activity& activity, Options options,
                                            const std::function<void(const std::string&)>& warn) {
  if (world.size() == 1) return nullptr;
  Ring ring = make_ring(world, patience_for_links, options.address);
  const bool made = agree(world, ring.fault, [&](const std::string& faults) {
    warn(
        fmt::format("no heartbeats: a rank that is stopped or unreachable is found by distributed.timeout_s "
                    "alone. Open the hosts' firewalls for connections between the ranks, or set "
                    "distributed.heartbeat_s = 0 to run without.\n{}",
                    faults));
  });
  if (!made) return nullptr;
  return std::unique_ptr<Heartbeat>(
      new Heartbeat(world.rank(), std::move(ring), activity, std::move(options)));
}

Heartbeat::Heartbeat(int rank, Ring ring, Activity& activity, Options options)
    : rank_(rank),
      size_(static_cast<int>(ring.hosts.size())),
      hosts_(std::move(ring.hosts)),
      activity_(activity),
      options_(std::move(options)),
      period_(std::max(options_.limit / 14, milliseconds(1))),
      unwinding_(std::uncaught_exceptions()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      kernel_sleep_(static_cast<pid_t>(syscall(SYS_gettid))) {
  if (!wake_.open()) throw Error("eventfd failed: too many open files; raise the limit with ulimit -n");
  previous_.socket = std::move(ring.previous);
  previous_.peer = (rank + size_ - 1) % size_;
  next_.socket = std::move(ring.next);
  next_.peer = (rank + 1) % size_;
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  leave();
}

void Heartbeat::leave() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    leave_ = std::uncaught_exceptions() > unwinding_ ? Leave::at_once : Leave::in_order;
  }
  wake();
  thread_.join();
}

void Heartbeat::wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full: then the thread wakes anyway.
  static_cast<void>(!::write(wake_.get(), &one, sizeof(one)));
}

bool Heartbeat::fail(const std::string& message, int code) {
  std::unique_lock lock(mutex_);
  if (rank_ != 0) changed_.wait_for(lock, others_may_be_first, [this] { return verdict_.has_value(); });
  if (verdict_) return false;
  own_failure_ = {.rank = rank_, .code = code, .said = true, .text = message};
  wake();
  changed_.wait_for(lock, roll_call_time, [this] { return verdict_.has_value(); });
  return !verdict_ || failed_here_;
}

void Heartbeat::end_with_others(milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return verdict_.has_value(); });
  // The thread ends the process within two seconds; if it can't, the caller's exception does.
  if (verdict_ && !failed_here_) changed_.wait_for(lock, std::chrono::seconds(5), [] { return false; });
}

void Heartbeat::summon() {
  {
    const std::lock_guard lock(mutex_);
    summons_wanted_ = true;
  }
  wake();
}

void Heartbeat::on_summons(std::function<void()> heard) {
  const std::lock_guard lock(mutex_);
  on_summons_ = std::move(heard);
  if (on_summons_ && summoned_) on_summons_();
}

void Heartbeat::on_verdict(std::function<void(const std::string&)> heard) {
  const std::lock_guard lock(mutex_);
  on_verdict_ = std::move(heard);
}

void Heartbeat::say(const std::string& text) {
  options_.say(text);
  const std::lock_guard lock(mutex_);
  if (on_verdict_) on_verdict_(text);
}

std::vector<RankState> Heartbeat::roll_call() {
  std::unique_lock lock(mutex_);
  const uint32_t number = ++calls_;
  wanted_call_ = number;
  answered_call_.reset();
  wake();
  const bool answered = changed_.wait_for(lock, roll_call_time,
                                          [&] { return answered_call_ && answered_call_->number == number; });
  std::vector<RankState> states;
  if (answered) states = std::move(answered_call_->states);
  lock.unlock();
  std::ranges::sort(states, {}, &RankState::rank);
  return states;
}

// --- the thread ---

void Heartbeat::run() {
  auto last = Clock::now();
  previous_.heard = next_.heard = last;
  while (true) {
    wait_for_news();
    const auto now = Clock::now();
    // Before the neighbours are judged by their silence: this process may not have listened.
    if (now - last > options_.limit / 3) stood_still(now);
    last = now;
    receive(previous_);
    receive(next_);
    take_requests();
    if (now >= next_beat_) {
      const std::string beat = encode_beat(activity_.state());
      send(previous_, beat);
      send(next_, beat);
      next_beat_ = now + period_;
    }
    if (!verdict_) look(now);
    if (verdict_ && conclude(now)) return;
    const Leave leave = leaving();
    if (leave == Leave::in_order) take_leave();
    if (leave != Leave::no) return;
  }
}

Heartbeat::Leave Heartbeat::leaving() {
  const std::lock_guard lock(mutex_);
  return leave_;
}

// The peer closes its side in answer. A socket closed with something unread would make the system drop what
// is on its way.
void Heartbeat::take_leave() {
  for (Link* link : {&previous_, &next_}) {
    send(*link, encode(Frame::Kind::goodbye));
    if (link->socket.open()) shutdown(link->socket.get(), SHUT_WR);
    link->left = true;
  }
  const auto deadline = Clock::now() + leave_time;
  while ((previous_.socket.open() || next_.socket.open()) && Clock::now() < deadline) {
    wait_for_news();
    receive(previous_);
    receive(next_);
  }
}

void Heartbeat::wait_for_news() {
  std::array<pollfd, 3> entries{{{wake_.get(), POLLIN, 0}, {}, {}}};
  size_t i = 1;
  for (const Link* link : {&previous_, &next_}) {
    // poll() skips negative descriptors.
    entries[i++] = {link->socket.get(), static_cast<short>(POLLIN | (link->outgoing.empty() ? 0 : POLLOUT)),
                    0};
  }
  const auto time = std::min(look_every, period_);
  if (poll(entries.data(), entries.size(), static_cast<int>(time.count())) <= 0) return;
  uint64_t count = 0;
  if (entries[0].revents != 0) static_cast<void>(!::read(wake_.get(), &count, sizeof(count)));
  flush(previous_);
  flush(next_);
}

void Heartbeat::stood_still(Clock::time_point now) {
  for (Link* link : {&previous_, &next_}) link->heard = now;
  kernel_sleep_.forget();
}

void Heartbeat::receive(Link& link) {
  std::array<char, 65536> bytes;
  while (link.socket.open()) {
    const ssize_t got = recv(link.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return lose(link, got < 0 ? errno : 0);
    link.heard = Clock::now();
    link.incoming.append(bytes.data(), static_cast<size_t>(got));
    try {
      while (const auto frame = take_frame(link.incoming)) take(link, *frame);
    } catch (const Error&) {
      return lose(link, EPROTO);
    }
  }
}

void Heartbeat::take(Link& link, const Frame& frame) {
  switch (frame.kind) {
    case Frame::Kind::beat:
      if (auto state = decode_beat(frame.body)) link.state = std::move(*state);
      return;
    case Frame::Kind::verdict:
      if (auto verdict = decode_verdict(frame.body)) decide(std::move(*verdict), Source::neighbour);
      return;
    case Frame::Kind::roll_call:
      if (auto call = decode_roll_call(frame.body)) take_roll_call(std::move(*call));
      return;
    case Frame::Kind::goodbye:
      link.left = true;
      return;
    case Frame::Kind::summons:
      take_summons();
      return;
  }
}

// A roll call goes once round, by way of the next rank.
void Heartbeat::take_roll_call(RollCall call) {
  if (call.origin == rank_) {
    const std::lock_guard lock(mutex_);
    answered_call_ = std::move(call);
    return changed_.notify_all();
  }
  if (call.states.size() >= static_cast<size_t>(size_)) return;
  call.states.push_back({rank_, hosts_[rank_], activity_.state()});
  send(next_, encode(call));
}

// A summons goes once round, by way of the next rank. A rank passes on only one: so there are as many
// messages as ranks, however many ranks are asked to end.
void Heartbeat::take_summons() {
  if (!std::exchange(summons_passed_, true)) send(next_, encode(Frame::Kind::summons));
  const std::lock_guard lock(mutex_);
  if (std::exchange(summoned_, true)) return;
  if (on_summons_) on_summons_();
}

void Heartbeat::take_requests() {
  std::unique_lock lock(mutex_);
  const bool summons = std::exchange(summons_wanted_, false);
  auto failure = std::exchange(own_failure_, std::nullopt);
  const auto call = std::exchange(wanted_call_, std::nullopt);
  lock.unlock();
  if (summons && !std::exchange(summons_passed_, true)) send(next_, encode(Frame::Kind::summons));
  if (failure) decide(std::move(*failure), Source::own_failure);
  if (call) {
    send(next_, encode(RollCall{rank_, *call, {{rank_, hosts_[rank_], activity_.state()}}}));
  }
}

void Heartbeat::send(Link& link, const std::string& bytes) {
  if (!link.socket.open() || link.outgoing.size() > most_outgoing) return;
  link.outgoing += bytes;
  flush(link);
}

// Errors are left to the reading side, which may yet find the peer's last words.
void Heartbeat::flush(Link& link) {
  while (link.socket.open() && !link.outgoing.empty()) {
    const ssize_t sent =
        ::send(link.socket.get(), link.outgoing.data(), link.outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) link.outgoing.clear();
    if (sent <= 0) return;
    link.outgoing.erase(0, static_cast<size_t>(sent));
  }
}

void Heartbeat::look(Clock::time_point now) {
  look_at(next_, now);
  look_at(previous_, now);
  if (now >= next_own_look_) {
    next_own_look_ = now + 2 * period_;
    look_at_own_thread(now);
  }
}

void Heartbeat::look_at(Link& link, Clock::time_point now) {
  if (verdict_ || link.left || !link.socket.open() || now - link.heard < options_.limit) return;
  const std::string who = rank_name(link.peer, hosts_[link.peer]);
  const double silence = in_seconds(now - link.heard);
  const std::string what =
      host_answers(link.socket, options_.limit / 2)
          ? fmt::format(
                "{} has given no sign of life for {:.1f} s, though its host answers: the process is "
                "stopped (SIGSTOP, a debugger) or gets no processor time",
                who, silence)
          : fmt::format("{} has been unreachable for {:.1f} s: its host or the network is down", who,
                        silence);
  accuse(link, what);
}

void Heartbeat::look_at_own_thread(Clock::time_point now) {
  const auto asleep = kernel_sleep_.look(now);
  const Activity::State state = activity_.state();
  if (verdict_ || asleep < options_.limit || state.doing == ActivityKind::storage) return;
  const std::string where = kernel_sleep_.where();
  decide({.rank = rank_,
          .text = fmt::format("{} has been stuck in the kernel{} for {:.1f} s: a disk, a network file system "
                              "or a device does not answer. It {}.",
                              rank_name(rank_, hosts_[rank_]), where.empty() ? "" : " (" + where + ")",
                              in_seconds(asleep), describe(state))},
         Source::detected_ahead);
}

void Heartbeat::lose(Link& link, int error) {
  link.socket.close();
  link.outgoing.clear();
  if (verdict_ || link.left) return;
  const bool network = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  const std::string what = network ? "is unreachable: its host or the network is down"
                           : error == EPROTO
                               ? "sends heartbeats that make no sense"
                               : "is gone: its process ended unexpectedly (killed, crashed or out of memory)";
  accuse(link, fmt::format("{} {}", rank_name(link.peer, hosts_[link.peer]), what));
}

void Heartbeat::accuse(const Link& link, const std::string& what) {
  decide({.rank = link.peer, .text = fmt::format("{}. {} {}", what, last_words(link), own_words())},
         &link == &next_ ? Source::detected_ahead : Source::detected_behind);
}

std::string Heartbeat::last_words(const Link& link) const {
  if (link.state.text.empty()) return "It had not told what it was doing.";
  const double ago = seconds_since(link.heard);
  return fmt::format("When last heard of, {:.1f} s ago, it was {} {} for {:.1f} s.", ago,
                     link.state.doing == ActivityKind::wait ? "waiting for" : "in", link.state.text,
                     link.state.seconds);
}

std::string Heartbeat::own_words() const {
  return fmt::format("Rank {} {}.", rank_, describe(activity_.state()));
}

// The first verdict stands. The later news that it is said goes round too.
void Heartbeat::decide(Verdict verdict, Source source) {
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    if (verdict_ && (!verdict.said || verdict_->said)) return;
    if (verdict_) {
      verdict_->said = true;
    } else {
      verdict_ = verdict;
      failed_here_ = source == Source::own_failure;
      decided_at_ = now;
      speak_after_ = turn_to_speak(verdict, source);
    }
    verdict = *verdict_;
  }
  changed_.notify_all();
  if (verdict.said) said_at_ = now;
  send(previous_, encode(verdict));
  send(next_, encode(verdict));
}

// Rank 0 speaks. If it is dead or can't be reached, the rank before the gap speaks; then the rank after it;
// then any rank that is still there, before it ends.
std::chrono::milliseconds Heartbeat::turn_to_speak(const Verdict& verdict, Source source) const {
  const bool accused = verdict.rank == rank_ && source == Source::neighbour;
  if (rank_ == 0 && !accused) return milliseconds(0);
  const int turns = (verdict.rank == 0 ? 0 : 1) + (source == Source::detected_behind ? 1 : 0);
  if (source != Source::neighbour) return turns * next_speaker_after;
  return end_after_verdict;
}

// Says the verdict, and tells the neighbours that it is said.
void Heartbeat::speak() {
  spoke_ = true;
  say(verdict_->text);
  Verdict said = *verdict_;
  said.said = true;
  decide(std::move(said), Source::neighbour);
}

// True once the thread is to end: after it has ended the process, as a rule.
bool Heartbeat::conclude(Clock::time_point now) {
  const auto age = now - decided_at_;
  // The rank's own thread has the message of its failure, and is on its way to end the process.
  if (failed_here_) {
    if (leaving() != Leave::no) return true;
    if (age < end_after_own_failure) return false;
  }
  if ((!verdict_->said && age >= speak_after_) || failed_here_) speak();
  const bool drained = previous_.outgoing.empty() && next_.outgoing.empty();
  const bool over = verdict_->said && now >= said_at_ + end_after_said && drained;
  if (!failed_here_ && !over && age < end_after_verdict + milliseconds(400)) return false;
  if (options_.every_rank_speaks && !spoke_) say(verdict_->text);
  options_.end(verdict_->code);
  return true;
}

}  // namespace pptrain::comm

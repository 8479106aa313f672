#include "parallel/comm/tcp/tcp_engine.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/threads.h"
#include "core/base/timing.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds call_time{8};
// So long a receive waits for its sender's call.
constexpr std::chrono::seconds receivers_call{1};
// Read from one link before the others have their turn.
constexpr size_t turn_bytes = size_t{4} << 20;
constexpr std::chrono::seconds goodbye_time{10};
constexpr std::chrono::seconds failure_time{1};
// Within the time after which a silent host counts as gone.
constexpr int looks_for_silence = 5;
constexpr net::Deadline never = net::Deadline::max();

struct Outgoing {
  FrameHeader header;
  TcpEngine::OperationPtr operation;  // data
  std::string text;                   // failure
  size_t sent = 0;                    // of header and body
};

// Tells a host that is gone from a peer that does not read: the peer's kernel still answers, however long its
// window is closed. (TCP_USER_TIMEOUT does not: it counts that time too.)
class SilenceWatch {
 public:
  explicit SilenceWatch(std::chrono::milliseconds patience) : patience_(patience) {}
  // True if what was sent has been repeated and nothing was acknowledged for as long as the patience. To be
  // called several times within it: silence counts from the first look that finds it.
  bool is_silent(const net::Socket& socket, net::Deadline now) {
    // A single repetition may have its answer on the way, even behind a window that was closed for minutes.
    constexpr uint32_t enough_repetitions = 2;
    const bool stood_still = now - std::exchange(looked_, now) > patience_;
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    // Probes are those of a closed window, or of an idle connection, that have no answer yet.
    const bool waits = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
    const bool answered = since_ && now - std::chrono::milliseconds(info.tcpi_last_ack_recv) > *since_;
    if (!waits) {
      since_.reset();
    } else if (!since_ || answered || stood_still) {
      since_ = now;
      repeated_ = info.tcpi_total_retrans;
    }
    const uint32_t repetitions = info.tcpi_total_retrans - repeated_ + info.tcpi_probes;
    return since_ && now - *since_ >= patience_ && repetitions >= enough_repetitions;
  }

 private:
  std::chrono::milliseconds patience_;
  std::optional<net::Deadline> since_;
  net::Deadline looked_{};
  uint32_t repeated_ = 0;  // segments of the connection, when the silence began
};

}  // namespace

struct TcpEngine::Link {
  TcpInbox inbox;
  SilenceWatch host;  // of the peer; the engine's thread's
  // Guards what follows; the sockets are opened and closed by the engine's thread alone.
  std::mutex mutex{};
  net::Socket socket{};           // the one to send on
  net::Socket second{};           // if both sides called
  net::Deadline call_at = never;  // while there is no connection
  bool lost = false;              // its connection has ended, or cannot be had
  bool left = false;              // this side has taken leave
  std::deque<Outgoing> outgoing{};
};

TcpEngine::TcpEngine(Met met, TcpInbox::Limits limits, std::chrono::milliseconds silence)
    : rank_(met.me.rank),
      addresses_(std::move(met.addresses)),
      limits_(limits),
      silence_(silence),
      contacts_(met.contacts ? std::move(met.contacts)
                             : std::make_unique<TcpContacts>(met.me, net::Socket(), TcpContacts::Options{})),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      unwinding_(std::uncaught_exceptions()) {
  if (!wake_.open()) throw Error("eventfd failed: too many open files; raise the limit with ulimit -n");
  // A rank that refuses is not called again: all ranks listen from the start of the run to their own end.
  contacts_->hand_over(
      {.silent = call_time,
       .linked = [this](int peer, net::Socket socket) { linked(peer, std::move(socket)); },
       .unreachable = [this](int peer, const std::string& reason) { unreachable(peer, reason); }});
  for (auto& [peer, socket] : met.links) linked(peer, std::move(socket));
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

void TcpEngine::join(std::shared_ptr<TcpNeighbours> neighbours) {
  neighbours->join(rank_, *this);
  neighbours_ = std::move(neighbours);
}

// If there is a connection, the peer takes leave on that too.
void TcpEngine::neighbour_left(int peer) {
  Link& link = link_to(peer);
  const std::lock_guard lock(link.mutex);
  if (!link.socket.open()) link.inbox.end(TcpInbox::ended_message(peer));
}

TcpEngine::~TcpEngine() {
  const bool unwinding = std::uncaught_exceptions() > unwinding_;
  take_leave_ = !failed_ && !unwinding;
  if (neighbours_)
    neighbours_->leave(rank_, take_leave_ ? ""
                              : failed_   ? failure()
                                          : fmt::format("rank {} left by an exception", rank_));
  if (take_leave_) {
    for (const auto& [peer, link] : links()) {
      const std::lock_guard lock(link->mutex);
      if (link->socket.open() || !link->outgoing.empty()) take_leave(*link);
    }
  }
  closing_ = true;
  wake();
  thread_.join();
}

TcpEngine::Link& TcpEngine::link_to(int peer) {
  const std::lock_guard lock(links_mutex_);
  if (const auto found = links_.find(peer); found != links_.end()) return *found->second;
  const auto end = [this](TcpOperation& operation, std::string error, bool peer_ended) {
    complete(operation, std::move(error), peer_ended);
  };
  std::unique_ptr<Link> link(
      new Link{.inbox = TcpInbox(peer, end, limits_, early_bytes_), .host = SilenceWatch(silence_)});
  return *links_.emplace(peer, std::move(link)).first->second;
}

TcpEngine::Links TcpEngine::links() {
  const std::lock_guard lock(links_mutex_);
  Links all;
  for (const auto& [peer, link] : links_) all.emplace_back(peer, link.get());
  return all;
}

void TcpEngine::wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full: then the thread wakes anyway.
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

TcpEngine::OperationPtr TcpEngine::send(uint64_t channel, const at::Tensor& tensor, int peer) {
  if (failed_) throw PeerFailure(failure());
  auto operation = std::make_shared<TcpOperation>();
  operation->tensor = tensor;
  if (is_neighbour(peer)) {
    hand_over(*operation, channel, peer);
    return operation;
  }
  Link& link = link_to(peer);
  if (link.inbox.ended()) throw PeerFailure(link.inbox.end_reason());
  bool left_over = false;
  {
    const std::lock_guard lock(link.mutex);
    enqueue(link, {.kind = FrameKind::data, .channel = channel, .bytes = tensor.nbytes()}, operation);
    left_over = !link.outgoing.empty();
    if (left_over && !link.socket.open()) link.call_at = std::min(link.call_at, Clock::now());
  }
  if (left_over) wake();
  return operation;
}

TcpEngine::OperationPtr TcpEngine::receive(uint64_t channel, at::Tensor tensor, int peer) {
  if (failed_) throw PeerFailure(failure());
  auto operation = std::make_shared<TcpOperation>();
  operation->tensor = std::move(tensor);
  Link& link = link_to(peer);
  bool wakes = link.inbox.receive(channel, operation);
  if (!is_neighbour(peer)) {
    const std::lock_guard lock(link.mutex);
    if (!link.socket.open() && !link.lost && link.call_at == never) {
      link.call_at = Clock::now() + receivers_call;
      wakes = true;
    }
  }
  if (wakes) wake();
  return operation;
}

void TcpEngine::hand_over(TcpOperation& message, uint64_t channel, int peer) {
  const bool there = neighbours_->with(peer, [&](TcpEngine& other) {
    const at::Tensor& tensor = message.tensor;
    other.link_to(rank_).inbox.hand_over(
        channel, {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  });
  complete(message, there ? "" : TcpInbox::ended_message(peer), /*peer_ended=*/!there);
}

void TcpEngine::complete(TcpOperation& operation, std::string error, bool peer_ended) {
  {
    const std::lock_guard lock(done_mutex_);
    operation.error = std::move(error);
    operation.peer_ended = peer_ended;
    operation.done = true;
  }
  done_.notify_all();
}

bool TcpEngine::wait(const OperationPtr& operation, net::Deadline deadline) {
  std::unique_lock lock(done_mutex_);
  if (deadline != net::Deadline::min())
    done_.wait_until(lock, deadline, [&] { return operation->done || failed_; });
  if (operation->done) {
    operation->tensor.reset();
  } else if (failed_) {
    throw PeerFailure(failure_);
  }
  return operation->done;
}

std::string TcpEngine::failure() {
  const std::lock_guard lock(done_mutex_);
  return failure_;
}

void TcpEngine::fail(const std::string& failure) {
  const std::string text = failure_text(failure);
  {
    const std::lock_guard lock(done_mutex_);
    if (failed_) return;
    failure_ = text;
    failed_ = true;
  }
  done_.notify_all();
  for (const auto& [peer, known] : links()) {
    Link& link = *known;
    if (link.inbox.ended()) continue;
    const std::lock_guard lock(link.mutex);
    // What has not begun is not sent any more.
    const bool begun = !link.outgoing.empty() && link.outgoing.front().sent > 0;
    link.outgoing.resize(begun ? 1 : 0);
    enqueue(link, {.kind = FrameKind::failure, .bytes = text.size()}, nullptr, text);
  }
  wake();
}

void TcpEngine::enqueue(Link& link, FrameHeader header, OperationPtr operation, std::string text) {
  if (link.lost) {
    if (operation) complete(*operation, "its connection has ended", /*peer_ended=*/true);
    return;
  }
  link.outgoing.push_back({header, std::move(operation), std::move(text)});
  if (link.outgoing.size() == 1) flush(link);
}

void TcpEngine::take_leave(Link& link) {
  if (std::exchange(link.left, true)) return;
  enqueue(link, {.kind = FrameKind::goodbye}, nullptr);
}

// Sends until the socket is full. Errors are left to the reading side, which may yet find the peer's last
// words.
void TcpEngine::flush(Link& link) {
  while (!link.outgoing.empty() && link.socket.open()) {
    Outgoing& frame = link.outgoing.front();
    const char* body = frame.operation ? static_cast<const char*>(frame.operation->tensor.const_data_ptr())
                                       : frame.text.data();
    const size_t header_left = sizeof(FrameHeader) - std::min(frame.sent, sizeof(FrameHeader));
    const size_t body_sent = frame.sent - (sizeof(FrameHeader) - header_left);
    iovec parts[2] = {
        {reinterpret_cast<char*>(&frame.header) + (sizeof(FrameHeader) - header_left), header_left},
        {const_cast<char*>(body) + body_sent, frame.header.bytes - body_sent}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(link.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return;
    frame.sent += static_cast<size_t>(sent);
    if (frame.sent < sizeof(FrameHeader) + frame.header.bytes) continue;
    if (frame.operation) complete(*frame.operation);
    link.outgoing.pop_front();
  }
}

// --- the thread: waits for links that can read or write, and reads frames ---

// Any error here must reach the ranks that wait: an exception would end the process without a word.
void TcpEngine::run() {
  std::string reason;
  try {
    return serve();
  } catch (const std::exception& e) {
    reason = e.what();
    reason.resize(std::min(reason.size(), reason.find('\n')));  // LibTorch adds the stack
  } catch (...) {
    reason = "an unknown exception";
  }
  try {
    fail(fmt::format("rank {} failed: its TCP thread met {}", rank_, reason));
  } catch (...) {  // no memory even for that
    failed_ = true;
    done_.notify_all();
  }
}

void TcpEngine::serve() {
  std::vector<pollfd> entries;
  net::Deadline give_up = never;
  while (true) {
    if (closing_ && give_up == never) {
      give_up = Clock::now() + (take_leave_ ? goodbye_time : failure_time);
      contacts_->close_door();
    }
    const Links known = links();
    if (closing_ && (may_stop(known) || Clock::now() >= give_up)) return;
    call_peers(known);
    entries.assign(1, {wake_.get(), POLLIN, 0});
    contacts_->watch(entries);
    const size_t first = entries.size();
    watch(entries, known);
    if (::poll(entries.data(), entries.size(), patience(known)) < 0) continue;
    uint64_t count = 0;
    if (entries[0].revents != 0) static_cast<void>(::read(wake_.get(), &count, sizeof(count)));
    for (size_t i = 0; i < known.size(); ++i) {
      const auto& [peer, link] = known[i];
      for (net::Socket* socket : {&link->socket, &link->second}) {
        const short ready = entries[first + 2 * i + (socket == &link->second)].revents;
        if ((ready & POLLOUT) != 0) {
          const std::lock_guard lock(link->mutex);
          flush(*link);
        }
        // A peer that is gone sends no more: what it left is little, and behind it lies the reason.
        const bool gone = (ready & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
        if ((ready & ~POLLOUT) != 0) read(peer, *link, *socket, gone);
      }
    }
    contacts_->handle(std::span(entries).subspan(1, first - 1));
    look_for_silence(known);
  }
}

void TcpEngine::call_peers(const Links& links) {
  for (const auto& [peer, link] : links) {
    {
      const std::lock_guard lock(link->mutex);
      const bool wanted = !closing_ || (take_leave_ && !link->outgoing.empty());
      if (link->call_at > Clock::now() || link->socket.open() || link->lost || !wanted) continue;
      link->call_at = never;
    }
    contacts_->call(peer, {addresses_.at(static_cast<size_t>(peer))});
  }
}

void TcpEngine::linked(int peer, net::Socket socket) {
  net::make_link(socket);
  Link& link = link_to(peer);
  const std::lock_guard lock(link.mutex);
  if (link.lost) return;
  (link.socket.open() ? link.second : link.socket) = std::move(socket);
  link.call_at = never;
  flush(link);
  if (take_leave_) take_leave(link);
}

void TcpEngine::unreachable(int peer, const std::string& reason) {
  Link& link = link_to(peer);
  const std::lock_guard lock(link.mutex);
  if (link.socket.open()) return;  // the peer called meanwhile
  link.lost = true;
  link.inbox.end(reason);  // first: after a failed send, the next one fails with the same reason
  drop_outgoing(link, reason);
}

void TcpEngine::drop_outgoing(Link& link, const std::string& reason) {
  for (const Outgoing& frame : link.outgoing) {
    if (frame.operation) complete(*frame.operation, reason, /*peer_ended=*/true);
  }
  link.outgoing.clear();
}

// How long poll() may wait, in milliseconds.
int TcpEngine::patience(const Links& links) {
  constexpr int closing_ms = 50;
  if (contacts_->has_contacts()) return static_cast<int>(TcpContacts::look_every.count());
  if (closing_) return closing_ms;
  net::Deadline next = never;
  for (const auto& [peer, link] : links) {
    const std::lock_guard lock(link->mutex);
    next = std::min(next, link->socket.open() ? next_look_for_silence_ : link->call_at);
  }
  if (next == never) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// Waits on every link for bytes if they are wanted, and always for its end. poll() skips sockets that are
// closed.
void TcpEngine::watch(std::vector<pollfd>& entries, const Links& links) {
  for (const auto& [peer, link] : links) {
    const bool reads = link->inbox.wants_bytes();
    const std::lock_guard lock(link->mutex);
    const int events = POLLRDHUP | (reads ? POLLIN : 0);
    const int writes = link->outgoing.empty() ? 0 : POLLOUT;
    entries.push_back({link->socket.get(), static_cast<short>(events | writes), 0});
    entries.push_back({link->second.get(), static_cast<short>(events), 0});
  }
}

// Closing is over when all is sent and, in good order, every peer has taken leave too: a socket closed with
// data still coming in would make the system drop what the peer has not read yet. A call is brought to its
// end: the peer may have taken the link for made already.
bool TcpEngine::may_stop(const Links& links) {
  if (!take_leave_ && !failed_) return true;
  if (!failed_ && !contacts_->idle()) return false;
  return std::ranges::all_of(links, [&](const auto& known) {
    Link& link = *known.second;
    const std::lock_guard lock(link.mutex);
    if (link.lost) return true;
    if (!link.socket.open()) return link.outgoing.empty() || failed_;
    return link.outgoing.empty() && (link.inbox.ended() || failed_);
  });
}

// Until the socket is empty, or the other links have their turn.
void TcpEngine::read(int peer, Link& link, net::Socket& socket, bool to_the_end) {
  for (size_t bytes_read = 0; socket.open() && bytes_read < turn_bytes;) {
    if (!to_the_end && !link.inbox.wants_bytes()) return;
    const std::span<char> room = link.inbox.room();
    const ssize_t got = ::recv(socket.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      const std::string error = got < 0 ? " (" + net::error_text(errno) + ")" : "";
      return lose(peer, link, socket,
                  "closed its connection unexpectedly: its process has probably died" + error);
    }
    bytes_read += static_cast<size_t>(got);
    try {
      const auto frame = link.inbox.took(static_cast<size_t>(got));
      if (frame == FrameKind::failure) fail(link.inbox.failure());
    } catch (const Error& e) {
      return lose(peer, link, socket, e.what());
    }
  }
}

// A host that is gone does not end its connections.
void TcpEngine::look_for_silence(const Links& links) {
  const auto now = Clock::now();
  if (now < next_look_for_silence_) return;
  next_look_for_silence_ = now + silence_ / looks_for_silence;
  for (const auto& [peer, link] : links) {
    if (!link->socket.open() || !link->host.is_silent(link->socket, now)) continue;
    lose(peer, *link, link->socket,
         fmt::format("has acknowledged nothing for {:.0f} s: its host or the network is down",
                     in_seconds(silence_)));
  }
}

// If there are two connections, a peer sends on one. If the other ends first, what comes on that one tells
// why.
void TcpEngine::lose(int peer, Link& link, net::Socket& socket, const std::string& reason) {
  {
    const std::lock_guard lock(link.mutex);
    socket.close();
    if (link.socket.open() || link.second.open()) return;
    link.lost = true;
    drop_outgoing(link, TcpInbox::ended_message(peer));
  }
  if (!link.inbox.ended() && !closing_) {
    fail(fmt::format("rank {} {} (noticed by rank {})", peer, reason, rank_));
  }
}

}  // namespace pptrain::comm

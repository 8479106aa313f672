// What the engine's thread does: waits for links that can read or write, and reads frames.
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_engine.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Read from one link before the others have their turn.
constexpr size_t turn_bytes = size_t{4} << 20;
constexpr std::chrono::seconds leave_time{10};
constexpr std::chrono::seconds failure_time{1};
// Within the time after which a silent host counts as gone.
constexpr int looks_for_silence = 5;

}  // namespace

// Whatever goes wrong here must reach those who wait: an exception would end the process without a word.
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
      give_up = Clock::now() + (take_leave_ ? leave_time : failure_time);
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
        if ((ready & ~POLLOUT) != 0) read_turn(peer, *link, *socket, gone);
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
    contacts_->call(peer, addresses_.at(static_cast<size_t>(peer)));
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
  link.inbox.end(reason);  // first: who hears of a send's failure and sends again is told the same reason
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

// What to wait for: on every link for bytes where they are wanted, and always for its end. poll() skips
// sockets that are closed.
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

void TcpEngine::read_turn(int peer, Link& link, net::Socket& socket, bool to_the_end) {
  size_t bytes_read = 0;
  while (socket.open() && bytes_read < turn_bytes) {
    if (!to_the_end && !link.inbox.wants_bytes()) return;
    std::string reason;
    const Read result = read_some(link, socket, bytes_read, reason);
    if (result == Read::later) return;
    if (result == Read::lost) return lose(peer, link, socket, reason);
  }
}

// One recv() into the header or the body, whichever is not full yet.
TcpEngine::Read TcpEngine::read_some(Link& link, const net::Socket& socket, size_t& bytes_read,
                                     std::string& reason) {
  const std::span<char> room = link.inbox.room();
  const ssize_t got = ::recv(socket.get(), room.data(), room.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return Read::more;
  if (got < 0 && errno == EAGAIN) return Read::later;
  if (got <= 0) {
    reason = "ended its connection without taking leave: its process has probably died";
    if (got < 0) reason += " (" + std::generic_category().message(errno) + ")";
    return Read::lost;
  }
  bytes_read += static_cast<size_t>(got);
  try {
    if (link.inbox.took(static_cast<size_t>(got)) == TcpInbox::Frame::failure) fail(link.inbox.failure());
  } catch (const Error& e) {
    reason = e.what();
    return Read::lost;
  }
  return Read::more;
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
                     std::chrono::duration<double>(silence_).count()));
  }
}

// Of two connections a peer sends on one; where the other ends first, what comes on that one tells why.
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

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
  Deadline give_up = Deadline::max();
  while (true) {
    if (closing_ && give_up == Deadline::max()) {
      give_up = Clock::now() + (take_leave_ ? leave_time : failure_time);
    }
    if (closing_ && (may_stop() || Clock::now() >= give_up)) return;
    watch(entries);
    if (::poll(entries.data(), entries.size(), closing_ ? 50 : -1) < 0) continue;
    uint64_t count = 0;
    if (entries[0].revents != 0) static_cast<void>(::read(wake_.get(), &count, sizeof(count)));
    for (size_t peer = 0; peer < links_.size(); ++peer) {
      const short ready = entries[peer + 1].revents;
      if ((ready & POLLOUT) != 0) {
        const std::lock_guard lock(links_[peer].mutex);
        flush(links_[peer]);
      }
      // A peer that is gone sends no more: what it left is little, and behind it lies the reason.
      const bool gone = (ready & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
      if ((ready & ~POLLOUT) != 0) read_turn(static_cast<int>(peer), gone);
    }
  }
}

// What to wait for: on every link for bytes where they are wanted, and always for its end.
void TcpEngine::watch(std::vector<pollfd>& entries) {
  entries.assign(1, {wake_.get(), POLLIN, 0});
  for (Link& link : links_) {
    const bool reads = link.inbox.wants_bytes();
    const std::lock_guard lock(link.mutex);
    const int events = POLLRDHUP | (reads ? POLLIN : 0) | (link.outgoing.empty() ? 0 : POLLOUT);
    entries.push_back({link.socket.get(), static_cast<short>(events), 0});  // poll() skips negative ones
  }
}

// Closing is over when all is sent and, in good order, every peer has taken leave too: a socket closed with
// data still coming in would make the system drop what the peer has not read yet.
bool TcpEngine::may_stop() {
  if (!take_leave_ && !failed_) return true;
  return std::ranges::all_of(links_, [&](Link& link) {
    const std::lock_guard lock(link.mutex);
    return !link.socket.open() || (link.outgoing.empty() && (link.inbox.ended() || failed_));
  });
}

void TcpEngine::read_turn(int peer, bool to_the_end) {
  Link& link = links_[peer];
  size_t bytes_read = 0;
  while (link.socket.open() && bytes_read < turn_bytes) {
    if (!to_the_end && !link.inbox.wants_bytes()) return;
    std::string reason;
    const Read result = read_some(link, bytes_read, reason);
    if (result == Read::later) return;
    if (result == Read::lost) return lose(peer, reason);
  }
}

// One recv() into the header or the body, whichever is not full yet.
TcpEngine::Read TcpEngine::read_some(Link& link, size_t& bytes_read, std::string& reason) {
  const std::span<char> room = link.inbox.room();
  const ssize_t got = ::recv(link.socket.get(), room.data(), room.size(), MSG_DONTWAIT);
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

void TcpEngine::lose(int peer, const std::string& reason) {
  Link& link = links_[peer];
  {
    const std::lock_guard lock(link.mutex);
    link.socket.close();
    for (const Outgoing& frame : link.outgoing) {
      if (frame.operation) complete(*frame.operation, TcpInbox::ended_message(peer), /*peer_ended=*/true);
    }
    link.outgoing.clear();
  }
  if (!link.inbox.ended() && !closing_) {
    fail(fmt::format("rank {} {} (noticed by rank {})", peer, reason, rank_));
  }
}

}  // namespace pptrain::comm

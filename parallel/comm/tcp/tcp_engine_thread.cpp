// What the engine's thread does: waits for links that can read or write, and reads frames.
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

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

void TcpEngine::run() {
  std::vector<pollfd> entries;
  Deadline give_up = Deadline::max();
  while (true) {
    if (closing_ && give_up == Deadline::max()) {
      give_up = Clock::now() + (take_leave_ ? leave_time : failure_time);
    }
    if (closing_ && (may_stop() || Clock::now() >= give_up)) return;
    entries.assign(1, {wake_.get(), POLLIN, 0});
    for (Link& link : links_) {
      const std::lock_guard lock(link.mutex);
      // poll() skips negative descriptors.
      entries.push_back(
          {link.socket.get(), static_cast<short>(POLLIN | (link.outgoing.empty() ? 0 : POLLOUT)), 0});
    }
    if (::poll(entries.data(), entries.size(), closing_ ? 50 : -1) < 0) continue;
    uint64_t count = 0;
    if (entries[0].revents != 0) static_cast<void>(::read(wake_.get(), &count, sizeof(count)));
    for (size_t peer = 0; peer < links_.size(); ++peer) {
      const short ready = entries[peer + 1].revents;
      if ((ready & POLLOUT) != 0) {
        const std::lock_guard lock(links_[peer].mutex);
        flush(links_[peer]);
      }
      if ((ready & ~POLLOUT) != 0) read_turn(static_cast<int>(peer));
    }
  }
}

// Closing is over when all is sent and, in good order, every peer has taken leave too: a socket closed with
// data still coming in would make the system drop what the peer has not read yet.
bool TcpEngine::may_stop() {
  if (!take_leave_ && !failed_) return true;
  return std::ranges::all_of(links_, [&](Link& link) {
    const std::lock_guard lock(link.mutex);
    return !link.socket.open() || (link.outgoing.empty() && (link.ended || failed_));
  });
}

void TcpEngine::read_turn(int peer) {
  Link& link = links_[peer];
  size_t bytes_read = 0;
  while (link.socket.open() && bytes_read < turn_bytes) {
    std::string reason;
    const Read result = read_some(link, bytes_read, reason);
    if (result == Read::later) return;
    if (result == Read::lost) return lose(peer, reason);
    Reading& reading = link.reading;
    if (reading.header_read < sizeof(Header)) continue;
    if (reading.header.magic != frame_magic) return lose(peer, "sent bytes that make no sense");
    if (reading.target == nullptr && reading.body_read == 0) begin_body(link);
    if (reading.body_read == reading.header.bytes) end_body(peer);
  }
}

// One recv() into the header or the body, whichever is not full yet.
TcpEngine::Read TcpEngine::read_some(Link& link, size_t& bytes_read, std::string& reason) {
  Reading& reading = link.reading;
  const bool in_header = reading.header_read < sizeof(Header);
  char* const target = in_header ? reinterpret_cast<char*>(&reading.header) + reading.header_read
                                 : reading.target + reading.body_read;
  const size_t wanted =
      in_header ? sizeof(Header) - reading.header_read : reading.header.bytes - reading.body_read;
  const ssize_t got = ::recv(link.socket.get(), target, wanted, MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return Read::more;
  if (got < 0 && errno == EAGAIN) return Read::later;
  if (got <= 0) {
    reason = "ended its connection without taking leave: its process has probably died";
    if (got < 0) reason += " (" + std::generic_category().message(errno) + ")";
    return Read::lost;
  }
  (in_header ? reading.header_read : reading.body_read) += static_cast<size_t>(got);
  bytes_read += static_cast<size_t>(got);
  return Read::more;
}

// Finds where the body goes: to the receive that waits for it, or to memory of its own.
void TcpEngine::begin_body(Link& link) {
  Reading& reading = link.reading;
  const std::lock_guard lock(link.mutex);
  if (reading.header.kind == Kind::data) {
    Channel& channel = link.channels[reading.header.channel];
    if (!channel.receives.empty() && channel.receives.front()->tensor.nbytes() == reading.header.bytes) {
      reading.operation = std::move(channel.receives.front());
      channel.receives.pop_front();
      reading.target = static_cast<char*>(reading.operation->tensor.mutable_data_ptr());
    } else {
      reading.incoming = std::make_shared<Incoming>();
      if (channel.receives.empty()) {
        channel.early.push_back(reading.incoming);
      } else {  // of another size: deliver() says so
        reading.incoming->claimed = std::move(channel.receives.front());
        channel.receives.pop_front();
      }
    }
    if (channel.receives.empty() && channel.early.empty()) link.channels.erase(reading.header.channel);
  } else {
    reading.incoming = std::make_shared<Incoming>();
  }
  if (reading.incoming) {
    reading.incoming->bytes.resize(reading.header.bytes);
    reading.target = reading.incoming->bytes.data();
  }
}

void TcpEngine::end_body(int peer) {
  Link& link = links_[peer];
  const Reading frame = std::exchange(link.reading, Reading{});
  switch (frame.header.kind) {
    case Kind::goodbye:
      return peer_took_leave(peer);
    case Kind::failure:
      return fail({frame.incoming->bytes.begin(), frame.incoming->bytes.end()});
    case Kind::data:
      break;
  }
  if (frame.operation) return complete(*frame.operation);
  const std::lock_guard lock(link.mutex);
  frame.incoming->complete = true;
  if (frame.incoming->claimed) deliver(*frame.incoming, *frame.incoming->claimed);
}

// Only messages that can no more come are in error; other ranks go on.
void TcpEngine::peer_took_leave(int peer) {
  Link& link = links_[peer];
  const std::lock_guard lock(link.mutex);
  link.ended = true;
  for (auto& [id, channel] : link.channels) {
    for (const OperationPtr& operation : channel.receives) {
      complete(*operation, ended_message(peer), /*peer_ended=*/true);
    }
    channel.receives.clear();
  }
  std::erase_if(link.channels, [](const auto& entry) { return entry.second.early.empty(); });
}

void TcpEngine::lose(int peer, const std::string& reason) {
  Link& link = links_[peer];
  bool expected = false;
  {
    const std::lock_guard lock(link.mutex);
    link.socket.close();
    link.outgoing.clear();
    expected = link.ended;
  }
  if (!expected && !closing_) fail(fmt::format("rank {} {} (noticed by rank {})", peer, reason, rank_));
}

}  // namespace pptrain::comm

#include "parallel/comm/tcp/tcp_engine.h"

#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

#include "core/base/error.h"
#include "core/base/signal_block.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Nobody is called again who refuses: all ranks listen from the start of the run to their own end.
constexpr TcpContacts::Patience call_patience{.refused = std::chrono::milliseconds(0),
                                              .silent = std::chrono::seconds(8)};
// So long a receive waits for its sender's call.
constexpr std::chrono::seconds receivers_call{1};

}  // namespace

TcpEngine::TcpEngine(Met met, TcpInbox::Limits limits, std::chrono::milliseconds silence)
    : rank_(met.me.rank),
      addresses_(std::move(met.addresses)),
      limits_(limits),
      silence_(silence),
      contacts_(met.contacts ? std::move(met.contacts)
                             : std::make_unique<TcpContacts>(met.me, net::Socket(), call_patience,
                                                             TcpContacts::Ends{})),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      unwinding_(std::uncaught_exceptions()) {
  if (!wake_.open()) throw Error("eventfd failed: too many open files; raise the limit with ulimit -n");
  contacts_->hand_over(
      call_patience,
      {.linked = [this](int peer, net::Socket socket) { linked(peer, std::move(socket)); },
       .unreachable = [this](int peer, const std::string& reason) { unreachable(peer, reason); }});
  for (auto& [peer, socket] : met.links) linked(peer, std::move(socket));
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

TcpEngine::~TcpEngine() {
  const bool unwinding = std::uncaught_exceptions() > unwinding_;
  take_leave_ = !failed_ && !unwinding;
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
  const auto found = links_.find(peer);
  if (found != links_.end()) return found->second;
  const auto end = [this](TcpOperation& operation, std::string error, bool peer_ended) {
    complete(operation, std::move(error), peer_ended);
  };
  return links_.try_emplace(peer, peer, end, limits_, early_bytes_, silence_).first->second;
}

TcpEngine::Links TcpEngine::links() {
  const std::lock_guard lock(links_mutex_);
  Links all;
  for (auto& [peer, link] : links_) all.emplace_back(peer, &link);
  return all;
}

void TcpEngine::wake() {
  const uint64_t one = 1;
  // It fails only when the counter is full: then the thread wakes anyway.
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
}

TcpEngine::OperationPtr TcpEngine::send(uint64_t channel, const at::Tensor& tensor, int peer) {
  if (failed_) throw_failure();
  auto operation = std::make_shared<TcpOperation>();
  operation->tensor = tensor;
  Link& link = link_to(peer);
  if (link.inbox.ended()) throw PeerFailure(link.inbox.end_reason());
  bool left_over = false;
  {
    const std::lock_guard lock(link.mutex);
    enqueue(link, {.header = {.kind = FrameKind::data, .channel = channel, .bytes = tensor.nbytes()},
                   .operation = operation,
                   .text = {}});
    left_over = !link.outgoing.empty();
    if (left_over && !link.socket.open()) link.call_at = std::min(link.call_at, Clock::now());
  }
  if (left_over) wake();
  return operation;
}

TcpEngine::OperationPtr TcpEngine::receive(uint64_t channel, at::Tensor tensor, int peer) {
  if (failed_) throw_failure();
  auto operation = std::make_shared<TcpOperation>();
  operation->tensor = std::move(tensor);
  Link& link = link_to(peer);
  bool wakes = link.inbox.receive(channel, operation);
  {
    const std::lock_guard lock(link.mutex);
    if (!link.socket.open() && !link.lost && link.call_at == never) {
      link.call_at = Clock::now() + receivers_call;
      wakes = true;
    }
  }
  if (wakes) wake();
  return operation;
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

TcpEngine::Outcome TcpEngine::poll(const OperationPtr& operation) {
  return wait(operation, net::Deadline::min());
}

TcpEngine::Outcome TcpEngine::wait(const OperationPtr& operation, net::Deadline deadline) {
  std::unique_lock lock(done_mutex_);
  if (deadline != net::Deadline::min())
    done_.wait_until(lock, deadline, [&] { return operation->done || failed_; });
  if (operation->done) {
    operation->tensor.reset();
    return Outcome::complete;
  }
  return failed_ ? Outcome::failed : Outcome::timeout;
}

void TcpEngine::throw_failure() {
  const std::lock_guard lock(done_mutex_);
  throw PeerFailure(failure_);
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
    enqueue(link,
            {.header = {.kind = FrameKind::failure, .bytes = text.size()}, .operation = {}, .text = text});
  }
  wake();
}

void TcpEngine::enqueue(Link& link, Outgoing frame) {
  if (link.lost) {
    if (frame.operation) complete(*frame.operation, "its connection has ended", /*peer_ended=*/true);
    return;
  }
  link.outgoing.push_back(std::move(frame));
  if (link.outgoing.size() == 1) flush(link);
}

void TcpEngine::take_leave(Link& link) {
  if (std::exchange(link.left, true)) return;
  enqueue(link, {.header = {.kind = FrameKind::goodbye}, .operation = {}, .text = {}});
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

}  // namespace pptrain::comm

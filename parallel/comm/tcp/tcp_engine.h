// Moves the bytes of all TCP communicators of this process: one link per peer, one thread for all links.
//
// On a link, frames of all communicators travel in the order of their sends; a frame names its communicator
// (channel). A frame goes straight into the tensor of its receive, or into memory of its own when it comes
// before the receive (TcpInbox), so that one communicator never holds up another. A send is tried at once by
// its caller; the thread does what is left.
#pragma once

#include <ATen/core/Tensor.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/tcp/tcp_frame.h"
#include "parallel/comm/tcp/tcp_inbox.h"
#include "parallel/comm/tcp/tcp_socket.h"

namespace pptrain::comm {

class TcpEngine {
 public:
  using OperationPtr = TcpInbox::OperationPtr;
  enum class Outcome { complete, failed, timeout };

  // links[r]: the connection to rank r; links[rank] is closed.
  TcpEngine(int rank, std::vector<Socket> links, TcpInbox::Limits limits = {});
  // Sends what is pending and takes leave, and waits up to 10 s for the peers to do so; after a failure it
  // only passes the failure on; while an exception unwinds it just closes.
  ~TcpEngine();
  TcpEngine(const TcpEngine&) = delete;
  TcpEngine& operator=(const TcpEngine&) = delete;

  OperationPtr send(uint64_t channel, const at::Tensor& tensor, int peer);
  OperationPtr receive(uint64_t channel, at::Tensor tensor, int peer);

  // complete: `error` may say that it went wrong. failed: throw_failure() tells.
  Outcome poll(const OperationPtr& operation);
  Outcome wait(const OperationPtr& operation, Deadline deadline);
  [[noreturn]] void throw_failure();
  // "" while nothing has failed.
  std::string failure();

  // Ends all waits here and on the peers with `failure`, of which max_failure_bytes count; the first call
  // wins. Any thread may call it, at any time of the engine's life.
  void fail(const std::string& failure);

 private:
  enum class Read { more, later, lost };
  struct Outgoing {
    FrameHeader header;
    OperationPtr operation;  // data
    std::string text;        // failure
    size_t sent = 0;         // of header and body
  };
  struct Link {
    Link(int peer, const TcpInbox::Complete& complete, TcpInbox::Limits limits)
        : inbox(peer, complete, limits) {}
    TcpInbox inbox;
    // Guards what follows; the socket is closed by the engine's thread alone.
    std::mutex mutex;
    Socket socket;
    std::deque<Outgoing> outgoing;
  };

  void run();
  void serve();
  void watch(std::vector<pollfd>& entries);
  bool may_stop();
  void flush(Link& link);  // under the link's lock
  void read_turn(int peer, bool to_the_end);
  Read read_some(Link& link, size_t& bytes_read, std::string& reason);
  void lose(int peer, const std::string& reason);
  void enqueue(Link& link, Outgoing frame);
  void complete(TcpOperation& operation, std::string error = "", bool peer_ended = false);
  void wake();

  const int rank_;
  std::deque<Link> links_;
  Socket wake_;  // an eventfd

  std::mutex done_mutex_;  // taken last, after a link's and an inbox's
  std::condition_variable done_;
  std::atomic<bool> failed_ = false;
  std::string failure_;

  std::atomic<bool> closing_ = false;
  std::atomic<bool> take_leave_ = false;  // closing in order
  const int unwinding_;
  std::jthread thread_;
};

}  // namespace pptrain::comm

// Moves the bytes of all TCP communicators of this process: one link per peer, one thread for all links.
//
// On a link, frames of all communicators travel in the order of their sends; a frame names its communicator
// (channel). A frame goes straight into the tensor of its receive, or into memory of its own when it comes
// before the receive, so that one communicator never holds up another. A send is tried at once by its caller;
// the thread does what is left.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/tcp/tcp_socket.h"

namespace pptrain::comm {

// One side of a message. `done` and `error` are guarded by the engine.
struct TcpOperation {
  at::Tensor tensor;  // until its owner has seen that the operation is done
  bool done = false;
  bool peer_ended = false;
  std::string error;
};

class TcpEngine {
 public:
  using OperationPtr = std::shared_ptr<TcpOperation>;
  enum class Outcome { complete, failed, timeout };

  // links[r]: the connection to rank r; links[rank] is closed.
  TcpEngine(int rank, std::vector<Socket> links);
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

  // Ends all waits here and on the peers with `failure`; the first call wins.
  void fail(const std::string& failure);

 private:
  enum class Kind : uint32_t { data, goodbye, failure };
  enum class Read { more, later, lost };
  static constexpr uint32_t frame_magic = 0x70707463;
  struct Header {
    uint32_t magic = frame_magic;
    Kind kind = Kind::data;
    uint64_t channel = 0;
    uint64_t bytes = 0;
  };
  struct Outgoing {
    Header header;
    OperationPtr operation;  // data
    std::string text;        // failure
    size_t sent = 0;         // of header and body
  };
  // A message that came before its receive, or a text.
  struct Incoming {
    std::vector<char> bytes;
    bool complete = false;
    OperationPtr claimed;  // by a receive posted while the message was coming in
  };
  struct Channel {
    std::deque<OperationPtr> receives;
    std::deque<std::shared_ptr<Incoming>> early;
  };
  // The frame that is coming in; the engine's thread alone touches it.
  struct Reading {
    Header header;
    size_t header_read = 0;
    char* target = nullptr;
    size_t body_read = 0;
    OperationPtr operation;
    std::shared_ptr<Incoming> incoming;
  };
  struct Link {
    // Guards what follows, except `reading`; the socket is closed by the engine's thread alone.
    std::mutex mutex;
    Socket socket;
    std::deque<Outgoing> outgoing;
    std::map<uint64_t, Channel> channels;
    bool ended = false;  // the peer took leave
    Reading reading;
  };

  void run();
  bool may_stop();
  void flush(Link& link);  // under the link's lock
  void read_turn(int peer);
  Read read_some(Link& link, size_t& bytes_read, std::string& reason);
  void begin_body(Link& link);
  void end_body(int peer);
  void peer_took_leave(int peer);
  void deliver(const Incoming& incoming, TcpOperation& operation);
  static std::string ended_message(int peer);
  static std::string size_error(size_t bytes, size_t expected);
  void lose(int peer, const std::string& reason);
  void enqueue(Link& link, Outgoing frame);
  void complete(TcpOperation& operation, std::string error = "", bool peer_ended = false);
  void wake();

  const int rank_;
  std::deque<Link> links_;
  Socket wake_;  // an eventfd

  std::mutex done_mutex_;  // taken last, after a link's
  std::condition_variable done_;
  std::atomic<bool> failed_ = false;
  std::string failure_;

  std::atomic<bool> closing_ = false;
  std::atomic<bool> take_leave_ = false;  // closing in order
  const int unwinding_;
  std::jthread thread_;
};

}  // namespace pptrain::comm

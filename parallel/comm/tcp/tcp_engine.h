// Moves the bytes of all TCP communicators of this process: one link per peer, one thread for all links.
//
// A link is connected when a message is first sent on it, by its sender. A receive waits for the sender's
// call, and calls itself when none has come after a second. So the receive also ends if the peer cannot be
// reached or has ended, and a connection that is possible in one direction alone is found. If both sides call
// at once there are two connections; each side then sends on the one that it had first.
//
// On a link, frames of all communicators travel in the order of their sends; a frame names its communicator
// (channel). A frame goes straight into the tensor of its receive, or into memory of its own when it comes
// before the receive (TcpInbox), so that one communicator never holds up another. A send is tried at once by
// its caller; the thread does what is left.
#pragma once

#include <ATen/core/Tensor.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_inbox.h"
#include "parallel/comm/tcp/tcp_meeting.h"
#include "parallel/comm/tcp/tcp_neighbours.h"

namespace pptrain::comm {

class TcpEngine {
 public:
  using OperationPtr = TcpInbox::OperationPtr;

  // silence: after which a host that acknowledges nothing counts as gone.
  explicit TcpEngine(Met met, TcpInbox::Limits limits = {},
                     std::chrono::milliseconds silence = std::chrono::seconds(25));
  // Sends what is pending and takes leave, and waits up to 10 s for the peers to do so; after a failure it
  // only passes the failure on; while an exception unwinds it just closes.
  ~TcpEngine();
  TcpEngine(const TcpEngine&) = delete;
  TcpEngine& operator=(const TcpEngine&) = delete;

  // From now on messages of these ranks of this process, this one among them, are copied from one engine to
  // the other. Returns when all have joined; throws PeerFailure if one cannot.
  void join(std::shared_ptr<TcpNeighbours> neighbours);
  void neighbour_left(int peer);  // by TcpNeighbours

  OperationPtr send(uint64_t channel, const at::Tensor& tensor, int peer);
  OperationPtr receive(uint64_t channel, at::Tensor tensor, int peer);

  // True once the operation is complete, by the deadline; its `error` may say that it went wrong. Throws
  // PeerFailure if the engine has failed before that.
  bool wait(const OperationPtr& operation, net::Deadline deadline = net::Deadline::min());
  // "" while nothing has failed.
  std::string failure();

  // Ends all waits here and on the peers with `failure`, of which max_failure_bytes count; the first call
  // wins. Any thread may call it, at any time of the engine's life.
  void fail(const std::string& failure);

 private:
  struct Link;
  using Links = std::vector<std::pair<int, Link*>>;  // by peer

  Link& link_to(int peer);
  Links links();
  bool is_neighbour(int peer) const { return neighbours_ && neighbours_->has(peer); }
  void hand_over(TcpOperation& message, uint64_t channel, int peer);
  void run();
  void serve();
  void call_peers(const Links& links);
  void linked(int peer, net::Socket socket);
  void unreachable(int peer, const std::string& reason);
  int patience(const Links& links);
  void watch(std::vector<pollfd>& entries, const Links& links);
  bool may_stop(const Links& links);
  void read(int peer, Link& link, net::Socket& socket, bool to_the_end);
  void look_for_silence(const Links& links);
  void lose(int peer, Link& link, net::Socket& socket, const std::string& reason);
  // --- under the link's lock ---
  void enqueue(Link& link, FrameHeader header, OperationPtr operation, std::string text = "");
  void flush(Link& link);
  void drop_outgoing(Link& link, const std::string& reason);
  void take_leave(Link& link);

  void complete(TcpOperation& operation, std::string error = "", bool peer_ended = false);
  void wake();

  const int rank_;
  const std::vector<net::Address> addresses_;  // by rank
  const TcpInbox::Limits limits_;
  const TcpInbox::Total early_bytes_ = std::make_shared<std::atomic<size_t>>(0);
  const std::chrono::milliseconds silence_;
  net::Deadline next_look_for_silence_{};
  const std::unique_ptr<TcpContacts> contacts_;  // the thread's own
  std::shared_ptr<TcpNeighbours> neighbours_;    // null: the process has one rank
  std::mutex links_mutex_;
  // Made when they are first used; none goes before the engine.
  std::map<int, std::unique_ptr<Link>> links_;
  FileDescriptor wake_;  // an eventfd

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

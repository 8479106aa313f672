// The meeting point while ranks set up: PyTorch's TCPStore, asked in a way that can be given up at any time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_communicator.h"

namespace c10d {
class TCPStore;
}

namespace pptrain::comm {

// How long a rank waits for the others, and whether it was told to stop.
class StartPatience {
 public:
  StartPatience(int rank, const Rendezvous& rendezvous)
      : rank_(rank),
        timeout_(rendezvous.timeout),
        deadline_(std::chrono::steady_clock::now() + rendezvous.timeout),
        stopped_(rendezvous.stopped) {}

  int rank() const { return rank_; }
  double seconds() const { return std::chrono::duration<double>(timeout_).count(); }
  bool over() const { return std::chrono::steady_clock::now() >= deadline_; }
  // Throws StartStopped that names `awaited` where the rank was told to stop.
  void check(const std::string& awaited) const;
  // For the last words of a rank whose time is over or who was told to stop.
  StartPatience for_last_words() const;

 private:
  int rank_;
  std::chrono::milliseconds timeout_;
  net::Deadline deadline_;
  std::function<bool()> stopped_;
};

// Calls block for as long as `patience` has; then they end with Error, and so they do where the store is
// gone. The values come from whoever reaches the store: they are to be checked.
class TcpStore {
 public:
  // host: meeting_host(). listener: rank 0's, where it serves the store; closed elsewhere.
  TcpStore(const Rendezvous& rendezvous, const std::string& host, net::Socket listener,
           const StartPatience& patience);

  void set(const std::string& key, const std::string& value, const StartPatience& patience);
  // The values of key(0), key(1), ..., which are there, in one answer.
  std::vector<std::string> find_all(int count, std::string (*key)(int), const StartPatience& patience);
  // Nothing where the key is not there yet.
  std::optional<std::string> find(const std::string& key, const StartPatience& patience);

  // "HOST port PORT (MASTER_ADDR, MASTER_PORT)"
  const std::string& name() const { return name_; }

 private:
  std::string prefix_;
  std::string name_;
  std::shared_ptr<c10d::TCPStore> store_;
};

}  // namespace pptrain::comm

// The ranks of one process, if it has several: what one sends to another is copied, straight into the tensor
// of its receive if that is posted.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace pptrain::comm {

class TcpEngine;

class TcpNeighbours {
 public:
  // Of `count` ranks, from `first` on.
  TcpNeighbours(int first, int count) : first_(first), count_(count) {}

  bool has(int rank) const { return rank >= first_ && rank < first_ + count_; }

  // Returns when all ranks have joined: until then their first messages have no place. Throws PeerFailure if
  // one of them cannot.
  void join(int rank, TcpEngine& engine);
  void cannot_join();
  // The engine ends: in order, or with this failure, which ends the others too. Waits for calls of with().
  void leave(int rank, const std::string& failure);
  // Calls body with the rank's engine. False if it has left.
  bool with(int rank, const std::function<void(TcpEngine&)>& body);

 private:
  const int first_, count_;
  std::shared_mutex mutex_;
  std::condition_variable_any changed_;
  std::map<int, TcpEngine*> engines_;
  int joined_ = 0;
  bool failed_ = false;
};

}  // namespace pptrain::comm

#include "parallel/comm/tcp/tcp_neighbours.h"

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_engine.h"

namespace pptrain::comm {

void TcpNeighbours::join(int rank, TcpEngine& engine) {
  std::unique_lock lock(mutex_);
  engines_[rank] = &engine;
  ++joined_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return joined_ == count_ || failed_; });
  if (joined_ == count_) return;
  engines_.erase(rank);
  throw PeerFailure("another rank of this process could not connect");
}

void TcpNeighbours::cannot_join() {
  const std::unique_lock lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

void TcpNeighbours::leave(int rank, const std::string& failure) {
  const std::unique_lock lock(mutex_);
  engines_.erase(rank);
  for (const auto& [other, engine] : engines_)
    failure.empty() ? engine->neighbour_left(rank) : engine->fail(failure);
}

bool TcpNeighbours::with(int rank, const std::function<void(TcpEngine&)>& body) {
  const std::shared_lock lock(mutex_);
  const auto found = engines_.find(rank);
  if (found == engines_.end()) return false;
  body(*found->second);
  return true;
}

}  // namespace pptrain::comm

// The base of transports whose collectives are made of messages: threads, MPI and TCP.
//
// A communicator has three lanes, and a message meets only messages of its lane. `messages` carries isend and
// irecv of the caller. `collectives` carries what the caller's thread posts for its collectives: blocking
// ones from begin to end, and those with a handle that are one exchange. `sums` carries collectives with a
// handle that exchange more than once: sums, and gathers in two steps. A thread of the
// communicator runs these one after another, first in first out. So on each lane messages are posted in the
// order of the collectives, which is the same on all ranks, whenever their handles are waited for.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

class SumQueue;

enum class Lane { messages, collectives, sums };
inline constexpr int lane_count = 3;

class MessageCommunicator : public Communicator {
 public:
  ~MessageCommunicator() override;

  void all_reduce_sum(at::Tensor tensor) override;
  void broadcast(at::Tensor tensor, int root) override;
  void barrier() override;
  void all_gather(at::Tensor out, const at::Tensor& tensor) override;
  void set_timeout(std::chrono::milliseconds timeout) override;

 protected:
  explicit MessageCommunicator(std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }
  // The same ranks, for isend and irecv on another lane, by any one thread. Sends nothing; it may outlive
  // this communicator.
  virtual std::unique_ptr<Communicator> on_lane(Lane lane) const = 0;

  std::unique_ptr<Work> start_all_reduce_sum(at::Tensor tensor) override;
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor, Counts counts,
                                                 std::span<const int> order) override;
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor tensor, Counts counts) override;
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                         std::vector<int64_t> to) override;

 private:
  Communicator& collectives();
  SumQueue& sums();

  std::chrono::milliseconds timeout_;
  // Made when they are first used.
  std::unique_ptr<Communicator> collectives_;
  std::unique_ptr<SumQueue> sums_;
};

}  // namespace pptrain::comm

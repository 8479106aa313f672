// Sums of gradients that are under way while the rank computes.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "parallel/comm/communicator.h"
#include "parallel/shard/group_exchange.h"
#include "parallel/shard/wait_stream.h"

namespace pptrain::shard {

// All sums of a rank: groups that share a communicator must share this. Sums overlap. Steps with the same
// number begin in the order in which the sums were begun, which is the same on all ranks, so that collectives
// match.
//
// NCCL wants one order over all communicators. There a wait orders streams and never blocks the host, so
// begin() begins all steps of a sum, each behind the one before it: the order depends on the program alone.
// On CPUs a wait blocks, and an order on each communicator is enough: a later step begins when the one before
// it is done and the rank looks.
class GradientSums {
 public:
  GradientSums();
  ~GradientSums();

  // `finished` is called once the sum is there, in the order of begin(), by advance(), finish() or
  // wait_for().
  void begin(GroupExchange& exchange, size_t buffer, std::function<void()> finished);

  // Begins steps whose turn it is and finishes sums that are there, without blocking the host.
  void advance();

  // Waits for all sums; `what` as in comm::Work::wait.
  void finish(const std::function<std::string()>& what);
  // ... for those up to and with this buffer's.
  void wait_for(const GroupExchange& exchange, size_t buffer, const std::function<std::string()>& what);

  bool under_way(const GroupExchange& exchange, size_t buffer) const;
  bool empty() const;

 private:
  struct Sum;
  void begin_steps();
  void begin_step(Sum& sum);  // behind the one before it
  bool front_is_done() const;
  void wait_for_front(const std::function<std::string()>& what);
  void finish_front();

  std::list<Sum> sums_;
  WaitStream wait_stream_;
};

}  // namespace pptrain::shard

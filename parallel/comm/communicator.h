// The transport interface: point-to-point with work handles, and collectives. One communicator is one group
// of ranks; its calls are made by one thread of each rank.
//
// Messages match without tags: of the messages between two ranks, the first send matches the first receive,
// the second the second, and so on. Collectives match collectives, in the order in which they are started,
// which is the same on all ranks; they never meet the messages of isend and irecv. Operations under way may
// be waited for in any order.
//
// A failed or silent peer never leaves a rank waiting: every wait ends with PeerFailure when another rank has
// failed, and with Error once the communicator's timeout has passed.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/host_blocks.h"

namespace pptrain::comm {

// An operation under way. Destroying it without wait() abandons the result, not the operation.
class Work {
 public:
  virtual ~Work() = default;
  // True once the operation is complete, without blocking.
  virtual bool done() = 0;
  // CPU transports: returns when the operation is complete. CUDA transports: orders the current stream after
  // it. `what` describes the wait in the schedule's terms, for the message of a timeout.
  virtual void wait(const std::function<std::string()>& what = {}) = 0;
  // Blocks for at most `time`. True once wait() would not block; may throw what wait() would throw.
  virtual bool wait_for(std::chrono::milliseconds time) = 0;
};

// Complete when all of `works` are; at once without any.
std::unique_ptr<Work> join(std::vector<std::unique_ptr<Work>> works = {});

// Elements for each rank of a group, by rank.
using Counts = std::span<const int64_t>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // tensor: contiguous; it must stay unchanged (send) or untouched (receive) until the work is done; the work
  // keeps it alive. Sends are buffered by time, not by memory: isend returns at once, even before the receive
  // is posted.
  virtual std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) = 0;
  virtual std::unique_ptr<Work> irecv(at::Tensor tensor, int source) = 0;

  // The communicator of the same ranks that carries CPU tensors and host values: this one, except on NCCL.
  virtual Communicator& host() { return *this; }

  // Sets up the links sender -> receiver of `pairs` now, so that no lazy connection can hang later.
  // Collective, with the same pairs in the same order on all ranks. Needed before isend/irecv of CUDA tensors
  // on NCCL, nothing elsewhere. blocks: the GPU's thread blocks that move a message of a link.
  virtual void connect(std::span<const std::pair<int, int>> /*pairs*/, int /*blocks*/ = link_blocks) {}
  static constexpr int link_blocks = 2;  // more in parallel/mesh/gpu_blocks.h

  // Gives transfers under way a chance to move on while the caller computes. Cheap; never waits.
  virtual void progress() {}

  // The communicator of some ranks of this one, in the order of `members`; this rank is one of them. All
  // members pass the same list, so it needs no agreement. Collective over the members alone; a rank in
  // several groups makes them in an order that all can follow. Threads and TCP send nothing.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> members) = 0;
  // The same ranks; its operations never match this communicator's. Collective.
  std::unique_ptr<Communicator> duplicate();

  // hosts: [rank] The number of its host. Sums and gathers that follow send what is the same for ranks of a
  // host to other hosts once (host_blocks.h), without a change of bits. The same on all ranks; a subgroup has
  // none.
  void set_hosts(std::span<const int> hosts) { blocks_ = HostBlocks::within(hosts); }

  // --- collectives; tensors are contiguous ---
  // Sums are taken in pairs of ranks, then in pairs of these pairs, and so on: ((x0 + x1) + (x2 + x3)) + ...
  // in the tensor's own type. So they do not depend on the transport, on hosts or on the way they are asked
  // for.

  // In place. Scratch: 16 MiB (64 MiB on NCCL) at most.
  virtual void all_reduce_sum(at::Tensor tensor) = 0;
  virtual void broadcast(at::Tensor tensor, int root) = 0;
  virtual void barrier() = 0;
  // One row per rank: out[r] = tensor of rank r. out: [size, ...tensor].
  virtual void all_gather(at::Tensor out, const at::Tensor& tensor) = 0;

  // The same with handles. They go on while the rank computes; any number may be under way, finished in any
  // order. Tensors are used as flat lists of elements; they must stay untouched (results) or unchanged
  // (operands) until the work is done, and the work keeps them alive. Beyond that:
  // - iall_gather and iall_to_all hold nothing. A gather between hosts takes its turn among the sums.
  // - the sums of one communicator are taken one after another, in a thread of its own (on NCCL: on the
  //   group's stream). A sum that waits for its turn holds nothing; the one whose turn it is holds the
  //   scratch of all_reduce_sum. On NCCL every sum under way holds scratch.
  // Throws Error if sizes do not fit, before anything is sent.

  // In place.
  std::unique_ptr<Work> iall_reduce_sum(at::Tensor tensor);
  // The sum over ranks of `tensor`, of which this rank gets its part. The parts lie one after another, that
  // of rank order[0] first; without an order by rank. out: [counts[rank]]; tensor: [sum of counts]. Without
  // counts: equal parts. The bits are those of all_reduce_sum. `out` may be this rank's part of `tensor`
  // itself.
  std::unique_ptr<Work> ireduce_scatter_sum(at::Tensor out, const at::Tensor& tensor, Counts counts = {},
                                            std::span<const int> order = {});
  // The tensors of all ranks, by rank. out: [sum of counts]; tensor: [counts[rank]]. Without counts: equal
  // parts. `tensor` may be this rank's part of `out` itself.
  std::unique_ptr<Work> iall_gather(at::Tensor out, const at::Tensor& tensor, Counts counts = {});
  // To each rank its part of `tensor`, from each rank a part of `out`, both by rank. out: [sum of from];
  // tensor: [sum of to]; to[r] here is from[rank] on rank r. The two must not overlap.
  std::unique_ptr<Work> iall_to_all(at::Tensor out, Counts from, const at::Tensor& tensor, Counts to);

  // Tells every rank of the job that this one has failed: their waits end with PeerFailure (threads, TCP), or
  // their processes end (MPI, after `message` is on standard error).
  virtual void abort(const std::string& message) = 0;

  // What has ended the job, as far as this transport knows, in the words of the PeerFailure that waits throw;
  // "" while nothing has. Any thread may call it, at any time of the communicator's life. (MPI: always "",
  // because there the processes end.)
  virtual std::string failure() const { return ""; }

  // Waits that last longer end with WaitTimeout. Communicators split off later inherit the value.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

 protected:
  // The collectives above for groups of two ranks or more, with flat tensors that fit and one count per rank.
  virtual std::unique_ptr<Work> start_all_reduce_sum(at::Tensor tensor) = 0;
  virtual std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor, Counts counts,
                                                         std::span<const int> order) = 0;
  virtual std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor tensor, Counts counts) = 0;
  virtual std::unique_ptr<Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                                 std::vector<int64_t> to) = 0;

  // Of this group.
  HostBlocks host_blocks() const { return blocks_.value_or(HostBlocks{.ranks = size(), .block = 1}); }

 private:
  std::optional<HostBlocks> blocks_;
};

// A group of one rank, which carries tensors of any device and sends nothing. job: where abort() goes; it
// must outlive the result and what is split off it.
std::unique_ptr<Communicator> make_self(Communicator& job);

// --- host-side helpers on any communicator (CPU tensors under the hood); host_values.h has more ---
std::vector<double> all_reduce_sum(Communicator& comm, std::span<const double> values);
void broadcast(Communicator& comm, std::span<double> values, int root);
std::string broadcast_string(Communicator& comm, const std::string& value, int root);
// The text of every rank, by rank, on `root`; nothing elsewhere. It travels by isend and irecv.
std::vector<std::string> gather_strings(Communicator& comm, const std::string& mine, int root);
std::vector<std::string> all_gather_strings(Communicator& comm, const std::string& mine);  // on every rank
// The same of values. Ranks may give different numbers of them.
std::vector<std::vector<double>> gather(Communicator& comm, std::span<const double> values, int root);
// True if any rank says true.
bool any(Communicator& comm, bool value);

}  // namespace pptrain::comm

// The transport interface: point-to-point with work handles, and collectives built on it. One communicator is
// one group of ranks; calls on it are made by one thread, in the same order on all its ranks (sends and
// receives of one pair of ranks match in order; there are no tags). Collectives and split() exchange messages
// of the same order: none may be called between an isend or irecv and its partner's counterpart.
//
// A failed or silent peer never leaves a rank waiting: every wait ends with PeerFailure when another rank has
// failed, and with Error once the communicator's timeout has passed.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
};

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
  // on NCCL, nothing elsewhere.
  virtual void connect(std::span<const std::pair<int, int>> pairs) { (void)pairs; }

  // Gives transfers under way a chance to move on while the caller computes. Cheap; never waits.
  virtual void progress() {}

  // Splits into groups of equal color, ordered by key then rank. Collective over this communicator.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Collectives. The defaults are built on isend/irecv; sums are taken in rank order, so that they do not
  // depend on the transport: ((x0 + x1) + x2) + ... in the tensor's own type. In place; tensor: contiguous.
  virtual void all_reduce_sum(at::Tensor tensor);
  virtual void broadcast(at::Tensor tensor, int root);
  virtual void barrier();
  // One row per rank: out[r] = tensor of rank r. out: [size, ...tensor].
  virtual void all_gather(at::Tensor out, const at::Tensor& tensor);

  // Tells every rank of the job that this one has failed: their waits end with PeerFailure (threads), or
  // their processes end (MPI, after `message` is on standard error).
  virtual void abort(const std::string& message) = 0;

  // Waits that last longer end with Error. Communicators split off later inherit the value.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
};

// --- host-side helpers on any communicator (CPU tensors under the hood) ---
std::vector<double> all_reduce_sum(Communicator& comm, std::span<const double> values);
void broadcast(Communicator& comm, std::span<double> values, int root);
std::string broadcast_string(Communicator& comm, const std::string& value, int root);
// The values of every rank, by rank, on `root`; nothing elsewhere. Ranks may give different numbers of them.
std::vector<std::vector<double>> gather(Communicator& comm, std::span<const double> values, int root);
// True where any rank says true.
bool any(Communicator& comm, bool value);

}  // namespace pptrain::comm

// Runs the collectives of one communicator that take several exchanges, one after another, while the caller
// computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "parallel/comm/collectives.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// --- The order of a sum over ranks, for transports that reduce by themselves.

// own <- ((x0 + x1) + x2) + ..., where x_me is `own` [n], and the others are the rows of `others` [size, n],
// which is scratch afterwards; its row `me` is not read. On the tensors' device.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size);

// --- Memory that a sum over ranks takes beside its tensors.

// Bytes of the scratch of a sum over so many ranks whose tensor is larger than that: 1 MiB for each rank, so
// that messages stay long enough, and at most 16 MiB. The thread that runs a communicator's sums keeps it.
constexpr int64_t most_sum_scratch(int ranks) {
  return std::min<int64_t>(ranks, 16) << 20;
}

class SumQueue {
 public:
  // A collective on the queue's communicator, which waits with `wait`.
  using Body = std::function<void(Communicator& comm, const Patience& wait)>;

  // comm: a lane that nobody else uses.
  explicit SumQueue(std::unique_ptr<Communicator> comm);
  // Finishes what is under way, except while an exception unwinds: then it gives up within 100 ms.
  ~SumQueue();
  SumQueue(const SumQueue&) = delete;
  SumQueue& operator=(const SumQueue&) = delete;

  // Runs `body` after all that was started before. tensors: what it reads and writes, all on one device; on a
  // GPU it runs on a stream of its own, after what the current stream holds now. `name` and `timeout`: of
  // each of its messages. Once one body has failed, all later ones fail with the same error.
  std::unique_ptr<Work> start(const char* name, std::vector<at::Tensor> tensors,
                              std::chrono::milliseconds timeout, Body body);

 private:
  struct Job;
  struct State;
  class JobWork;

  void run();
  void run_job(Job& job);
  void drop_jobs();
  void wait(Work& work, const char* what, std::chrono::milliseconds timeout);

  std::unique_ptr<Communicator> comm_;
  std::shared_ptr<State> state_;       // shared with the works, which may outlive the queue
  std::optional<c10::Stream> stream_;  // GPU: where the thread works
  int unwinding_;
  std::jthread thread_;
};

}  // namespace pptrain::comm

#include "parallel/comm/message_communicator.h"

#include <c10/core/InferenceMode.h>

#include <utility>

#include "parallel/comm/collectives.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/sum_queue.h"

namespace pptrain::comm {

MessageCommunicator::MessageCommunicator(std::chrono::milliseconds timeout) : timeout_(timeout) {}

MessageCommunicator::~MessageCommunicator() = default;

Communicator& MessageCommunicator::collectives() {
  if (!collectives_) collectives_ = on_lane(Lane::collectives);
  return *collectives_;
}

SumQueue& MessageCommunicator::sums() {
  if (!sums_) sums_ = std::make_unique<SumQueue>(on_lane(Lane::sums));
  return *sums_;
}

void MessageCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  if (collectives_) collectives_->set_timeout(timeout);
}

void MessageCommunicator::all_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "all_reduce_sum");
  if (size() == 1 || tensor.numel() == 0) return;
  const c10::InferenceMode inference;
  run_all_reduce_sum(collectives(), tensor.view({-1}), wait_for_message);
}

void MessageCommunicator::broadcast(at::Tensor tensor, int root) {
  check_contiguous(tensor, "broadcast");
  check_root(root, size());
  if (size() > 1 && tensor.numel() > 0) run_broadcast(collectives(), std::move(tensor), root);
}

void MessageCommunicator::barrier() {
  if (size() > 1) run_barrier(collectives());
}

void MessageCommunicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  check_contiguous(out, "all_gather");
  check_rows(out, tensor, size());
  run_all_gather(collectives(), out.view({-1}), tensor.view({-1}));
}

std::unique_ptr<Work> MessageCommunicator::start_all_reduce_sum(at::Tensor tensor) {
  return sums().start(
      "iall_reduce_sum", {tensor}, timeout_,
      [tensor](Communicator& lane, const Patience& wait) { run_all_reduce_sum(lane, tensor, wait); });
}

std::unique_ptr<Work> MessageCommunicator::start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                                    std::vector<int64_t> counts) {
  return sums().start("ireduce_scatter_sum", {out, tensor}, timeout_,
                      [out, tensor, counts = std::move(counts)](Communicator& lane, const Patience& wait) {
                        run_reduce_scatter_sum(lane, out, tensor, counts, wait);
                      });
}

std::unique_ptr<Work> MessageCommunicator::start_all_gather(at::Tensor out, at::Tensor tensor,
                                                            std::vector<int64_t> counts) {
  return comm::start_all_gather(collectives(), std::move(out), tensor, counts);
}

std::unique_ptr<Work> MessageCommunicator::start_all_to_all(at::Tensor out, std::vector<int64_t> from,
                                                            at::Tensor tensor, std::vector<int64_t> to) {
  return comm::start_all_to_all(collectives(), std::move(out), from, tensor, to);
}

}  // namespace pptrain::comm

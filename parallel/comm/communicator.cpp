// The collectives with handles: arguments are checked here, once for all transports.
#include "parallel/comm/communicator.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

class JoinedWork final : public Work {
 public:
  explicit JoinedWork(std::vector<std::unique_ptr<Work>> works) : works_(std::move(works)) {}

  bool done() override {
    return std::ranges::all_of(works_, [](const auto& work) { return work->done(); });
  }
  void wait(const std::function<std::string()>& what) override {
    for (const auto& work : works_) work->wait(what);
  }
  bool wait_for(std::chrono::milliseconds time) override {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + time;
    return std::ranges::all_of(works_, [&](const auto& work) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      return work->wait_for(std::max(left, std::chrono::milliseconds(0)));
    });
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

// Checks that `whole` divides into one part per rank, and that `part` has the size of this rank's part.
std::vector<int64_t> check_parts(const Communicator& comm, const at::Tensor& whole, const at::Tensor& part,
                                 Counts counts, const char* what) {
  check_contiguous(whole, what);
  check_contiguous(part, what);
  check_same_kind(whole, part, what);
  if (counts.empty()) {
    if (whole.numel() != part.numel() * comm.size()) {
      throw Error(
          fmt::format("{}: {} elements are not {} ranks' parts of {}: give the counts of unequal parts", what,
                      whole.numel(), comm.size(), part.numel()));
    }
    return std::vector<int64_t>(static_cast<size_t>(comm.size()), part.numel());
  }
  check_counts(counts, comm.size(), whole.numel(), what);
  if (counts[comm.rank()] != part.numel()) {
    throw Error(fmt::format("{}: rank {} takes part with {} elements, but its count is {}", what, comm.rank(),
                            part.numel(), counts[comm.rank()]));
  }
  return {counts.begin(), counts.end()};
}

// An order names each rank once.
void check_order(std::span<const int> order, int size, const char* what) {
  if (order.empty()) return;
  std::vector<int> ranks(order.begin(), order.end());
  std::ranges::sort(ranks);
  if (ranks != all_ranks(size))
    throw Error(fmt::format("{}: the order of parts is not one of {} ranks", what, size));
}

// What a group of one rank does instead of sending.
std::unique_ptr<Work> copy_alone(at::Tensor out, const at::Tensor& tensor) {
  copy_own_part(std::move(out), tensor);
  return join();
}

}  // namespace

std::unique_ptr<Work> join(std::vector<std::unique_ptr<Work>> works) {
  return std::make_unique<JoinedWork>(std::move(works));
}

std::unique_ptr<Communicator> Communicator::duplicate() {
  return subgroup(all_ranks(size()));
}

std::unique_ptr<Work> Communicator::iall_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "iall_reduce_sum");
  if (size() == 1 || tensor.numel() == 0) return join();
  const c10::InferenceMode inference;
  return start_all_reduce_sum(tensor.view({-1}));
}

std::unique_ptr<Work> Communicator::ireduce_scatter_sum(at::Tensor out, const at::Tensor& tensor,
                                                        Counts counts, std::span<const int> order) {
  constexpr const char* what = "ireduce_scatter_sum";
  const std::vector<int64_t> all = check_parts(*this, tensor, out, counts, what);
  check_order(order, size(), what);
  const c10::InferenceMode inference;
  if (size() == 1) return copy_alone(out.view({-1}), tensor.view({-1}));
  if (tensor.numel() == 0) return join();
  return start_reduce_scatter_sum(out.view({-1}), tensor.view({-1}), all, order);
}

std::unique_ptr<Work> Communicator::iall_gather(at::Tensor out, const at::Tensor& tensor, Counts counts) {
  const std::vector<int64_t> all = check_parts(*this, out, tensor, counts, "iall_gather");
  const c10::InferenceMode inference;
  if (size() == 1) return copy_alone(out.view({-1}), tensor.view({-1}));
  if (out.numel() == 0) return join();
  return start_all_gather(out.view({-1}), tensor.view({-1}), all);
}

std::unique_ptr<Work> Communicator::iall_to_all(at::Tensor out, Counts from, const at::Tensor& tensor,
                                                Counts to) {
  constexpr const char* what = "iall_to_all";
  check_contiguous(out, what);
  check_contiguous(tensor, what);
  check_same_kind(out, tensor, what);
  check_counts(from, size(), out.numel(), what);
  check_counts(to, size(), tensor.numel(), what);
  if (from[rank()] != to[rank()]) {
    throw Error(fmt::format("{}: rank {} sends itself {} elements, but expects {}", what, rank(), to[rank()],
                            from[rank()]));
  }
  const c10::InferenceMode inference;
  if (size() == 1) return copy_alone(out.view({-1}), tensor.view({-1}));
  return start_all_to_all(out.view({-1}), {from.begin(), from.end()}, tensor.view({-1}),
                          {to.begin(), to.end()});
}

}  // namespace pptrain::comm

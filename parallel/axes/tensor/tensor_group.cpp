#include "parallel/axes/tensor/tensor_group.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/split.h"

namespace pptrain::tensor {
namespace {

nn::TensorGroup::Wait wait_of(std::unique_ptr<comm::Work> work) {
  return [work = std::shared_ptr(std::move(work))] {
    comm::wait_in_pass(*work, [] { return "an exchange of tensor-parallel ranks"; });
  };
}

// Elements of each rank that has these rows of a tensor like `whole`.
std::vector<int64_t> elements(const at::Tensor& whole, std::span<const int64_t> rows) {
  const int64_t width = whole.numel() / std::max<int64_t>(1, whole.size(0));
  std::vector<int64_t> counts;
  for (const int64_t count : rows) counts.push_back(count * width);
  return counts;
}

class TensorRegion final : public nn::TensorGroup {
 public:
  explicit TensorRegion(comm::Communicator& tp)
      : nn::TensorGroup({.rank = tp.rank(), .size = tp.size()}), tp_(tp) {}

  Wait gather(at::Tensor all, const at::Tensor& own, std::span<const int64_t> rows) const override {
    const std::vector<int64_t> counts = elements(all, rows);
    return wait_of(tp_.iall_gather(std::move(all), own, counts));
  }
  Wait sum(at::Tensor own, const at::Tensor& partial, std::span<const int64_t> rows) const override {
    const std::vector<int64_t> counts = elements(partial, rows);
    return wait_of(tp_.ireduce_scatter_sum(std::move(own), partial, counts));
  }

 private:
  comm::Communicator& tp_;
};

}  // namespace

std::shared_ptr<const nn::TensorGroup> make_tensor_group(comm::Communicator* tp) {
  if (tp == nullptr || tp->size() == 1) return std::make_shared<nn::TensorGroup>();
  return std::make_shared<TensorRegion>(*tp);
}

std::unique_ptr<comm::Communicator> make_kv_group(comm::Communicator& tp, int64_t kv_heads) {
  if (kv_heads < 1 || (kv_heads % tp.size() != 0 && tp.size() % kv_heads != 0)) {
    throw Error(fmt::format("{} key-value heads on {} tensor-parallel ranks: one must divide the other",
                            kv_heads, tp.size()));
  }
  if (kv_heads >= tp.size()) return comm::make_self(tp);
  const auto neighbours = static_cast<int>(tp.size() / kv_heads);
  return comm::split(tp, [&](int rank) { return rank / neighbours; });
}

}  // namespace pptrain::tensor

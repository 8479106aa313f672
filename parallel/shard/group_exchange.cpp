#include "parallel/shard/group_exchange.h"

#include <spdlog/fmt/fmt.h>

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/works.h"

namespace pptrain::shard {
namespace {

using Works = std::vector<std::unique_ptr<comm::Work>>;

std::unique_ptr<comm::Work> all(Works works) {
  return std::make_unique<comm::AllWorks>(std::move(works));
}

// Sums each tensor over the replicas after `first`.
class SumAfter final : public comm::Work {
 public:
  SumAfter(std::unique_ptr<comm::Work> first, comm::Communicator& replicas, std::vector<at::Tensor> tensors)
      : first_(std::move(first)), replicas_(replicas), tensors_(std::move(tensors)) {}

  bool done() override { return second_ && second_->done(); }
  void wait(const std::function<std::string()>& what) override {
    begin_second(what);
    second_->wait(what);
  }
  bool wait_for(std::chrono::milliseconds time) override { return second_ && second_->wait_for(time); }

 private:
  void begin_second(const std::function<std::string()>& what) {
    if (second_) return;
    first_->wait(what);
    Works works;
    for (const at::Tensor& tensor : tensors_) works.push_back(replicas_.iall_reduce_sum(tensor));
    second_ = all(std::move(works));
  }

  std::unique_ptr<comm::Work> first_, second_;
  comm::Communicator& replicas_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

GroupExchange::GroupExchange(nn::ParameterGroup& group, comm::Communicator& fsdp,
                             comm::Communicator& replicas)
    : group_(group), fsdp_(fsdp), replicas_(replicas) {
  const nn::Division& division = group.division();
  if (division.parts != fsdp.size() || division.part != fsdp.rank()) {
    throw Error(fmt::format("parameter group {} is part {} of {}, but this is rank {} of {}", group.name(),
                            division.part, division.parts, fsdp.rank(), fsdp.size()));
  }
}

std::unique_ptr<comm::Work> GroupExchange::unshard() {
  if (fsdp_.size() == 1) return std::make_unique<comm::DoneWork>();
  group_.restore_whole_compute();
  Works works;
  const auto shards = group_.shards();
  for (size_t i = 0; i < shards.size(); ++i)
    works.push_back(fsdp_.iall_gather(group_.whole()[i].compute, shards[i]->rounded()));
  return all(std::move(works));
}

std::unique_ptr<comm::Work> GroupExchange::reduce_grad() {
  const auto shards = group_.shards();
  std::vector<at::Tensor> sums;  // of this rank's part
  Works works;
  for (size_t i = 0; i < shards.size(); ++i) {
    sums.push_back(shards[i]->grad);
    if (fsdp_.size() > 1) works.push_back(fsdp_.ireduce_scatter_sum(shards[i]->grad, group_.whole()[i].grad));
  }
  if (replicas_.size() == 1) return all(std::move(works));
  if (fsdp_.size() == 1) {
    for (const at::Tensor& sum : sums) works.push_back(replicas_.iall_reduce_sum(sum));
    return all(std::move(works));
  }
  return std::make_unique<SumAfter>(all(std::move(works)), replicas_, std::move(sums));
}

}  // namespace pptrain::shard

#include "parallel/comm/exchange.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace pptrain::comm {

Exchange::Exchange(Communicator& group, std::vector<size_t> counts)
    : counts_(std::move(counts)), group_(group.host().duplicate()) {
  if (counts_.size() != static_cast<size_t>(group_->size()))
    throw Error("exchange: one count per rank is needed");
}

Exchange::~Exchange() = default;

void Exchange::start(std::span<const double> values) {
  const int me = group_->rank();
  if (!values_.empty()) throw Error("exchange: the one before is still under way");
  if (values.size() != counts_[me]) throw Error("exchange: another number of values than agreed");
  for (const size_t count : counts_) values_.push_back(at::empty({static_cast<int64_t>(count)}, at::kDouble));
  std::ranges::copy(values, values_[me].data_ptr<double>());
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank != me) works_.push_back(group_->irecv(values_[rank], rank));
  }
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank != me) works_.push_back(group_->isend(values_[me], rank));
  }
}

std::vector<std::vector<double>> Exchange::wait(const std::string& what) {
  for (const auto& work : works_) {
    work->wait([&] { return fmt::format("rank {} waits for {}", group_->rank(), what); });
  }
  works_.clear();
  std::vector<std::vector<double>> result;
  for (const at::Tensor& tensor : std::exchange(values_, {})) {
    const double* begin = tensor.const_data_ptr<double>();
    result.emplace_back(begin, begin + tensor.numel());
  }
  return result;
}

}  // namespace pptrain::comm

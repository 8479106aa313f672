// Host values over a communicator, and the ranks of a colour.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "parallel/comm/communicator.h"
#include "parallel/comm/split.h"

namespace pptrain::comm {

std::vector<int> ranks_of_color(Communicator& comm, int color, int key) {
  const at::Tensor mine = at::empty({2}, at::kLong);
  mine.data_ptr<int64_t>()[0] = color;
  mine.data_ptr<int64_t>()[1] = key;
  const at::Tensor all = at::empty({comm.size(), 2}, at::kLong);
  comm.all_gather(all, mine);
  const int64_t* rows = all.const_data_ptr<int64_t>();
  std::vector<int> ranks;
  for (int r = 0; r < comm.size(); ++r) {
    if (rows[2 * r] == color) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return rows[2 * a + 1] < rows[2 * b + 1]; });
  return ranks;
}

std::vector<double> all_reduce_sum(Communicator& comm, std::span<const double> values) {
  const at::Tensor sum = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), sum.data_ptr<double>());
  comm.host().all_reduce_sum(sum);
  const double* begin = sum.const_data_ptr<double>();
  return {begin, begin + values.size()};
}

void broadcast(Communicator& comm, std::span<double> values, int root) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  comm.host().broadcast(tensor, root);
  std::copy_n(tensor.const_data_ptr<double>(), values.size(), values.begin());
}

std::string broadcast_string(Communicator& comm, const std::string& value, int root) {
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.data_ptr<int64_t>() = static_cast<int64_t>(value.size());
  comm.host().broadcast(length, root);
  if (*length.const_data_ptr<int64_t>() == 0) return "";
  const at::Tensor bytes = at::empty({*length.const_data_ptr<int64_t>()}, at::kByte);
  if (comm.rank() == root) std::memcpy(bytes.data_ptr(), value.data(), value.size());
  comm.host().broadcast(bytes, root);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::vector<std::vector<double>> gather(Communicator& communicator, std::span<const double> values,
                                        int root) {
  Communicator& comm = communicator.host();
  const auto what = [] { return std::string("gather"); };
  at::Tensor length = at::empty({1}, at::kLong);
  if (comm.rank() != root) {
    *length.data_ptr<int64_t>() = static_cast<int64_t>(values.size());
    const at::Tensor mine = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
    std::ranges::copy(values, mine.data_ptr<double>());
    const auto first = comm.isend(length, root);
    comm.isend(mine, root)->wait(what);
    first->wait(what);
    return {};
  }
  std::vector<std::vector<double>> all(comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (rank == root) {
      all[rank].assign(values.begin(), values.end());
      continue;
    }
    comm.irecv(length, rank)->wait(what);
    const at::Tensor theirs = at::empty({*length.const_data_ptr<int64_t>()}, at::kDouble);
    comm.irecv(theirs, rank)->wait(what);
    const double* begin = theirs.const_data_ptr<double>();
    all[rank].assign(begin, begin + theirs.numel());
  }
  return all;
}

bool any(Communicator& comm, bool value) {
  const double mine = value ? 1.0 : 0.0;
  return all_reduce_sum(comm, std::span(&mine, 1))[0] > 0.0;
}

}  // namespace pptrain::comm

// Host values over a communicator.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "parallel/comm/communicator.h"
#include "parallel/comm/split.h"

namespace pptrain::comm {

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

std::vector<std::string> gather_strings(Communicator& communicator, const std::string& mine, int root) {
  Communicator& comm = communicator.host();
  const auto what = [] { return std::string("gather"); };
  const int size = comm.size();
  const int relative = (comm.rank() - root + size) % size;
  const auto absolute = [&](int r) { return (r + root) % size; };
  const Tree tree(relative, size);
  // Of the ranks from this one on, as far as they are below it.
  const at::Tensor lengths = at::empty({tree.ranks}, at::kLong);
  auto* const length = lengths.mutable_data_ptr<int64_t>();
  length[0] = static_cast<int64_t>(mine.size());
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const int child = tree.children[i];
    works.push_back(
        comm.irecv(lengths.narrow(0, child - relative, tree.ranks_below(i, relative)), absolute(child)));
  }
  for (const auto& work : works) work->wait(what);
  works.clear();
  const at::Tensor bytes = at::empty({std::accumulate(length, length + tree.ranks, int64_t{0})}, at::kByte);
  if (!mine.empty()) std::memcpy(bytes.mutable_data_ptr(), mine.data(), mine.size());
  int64_t begin = length[0];
  for (size_t i = 0; i < tree.children.size(); ++i) {
    const int64_t* const first = length + tree.children[i] - relative;
    const int64_t below = std::accumulate(first, first + tree.ranks_below(i, relative), int64_t{0});
    works.push_back(comm.irecv(bytes.narrow(0, begin, below), absolute(tree.children[i])));
    begin += below;
  }
  for (const auto& work : works) work->wait(what);
  if (relative > 0) {
    const auto told = comm.isend(lengths, absolute(tree.parent));
    comm.isend(bytes, absolute(tree.parent))->wait(what);
    told->wait(what);
    return {};
  }
  std::vector<std::string> all(static_cast<size_t>(size));
  const auto* next = static_cast<const char*>(bytes.const_data_ptr());
  for (int r = 0; r < size; next += length[r++]) {
    if (length[r] > 0) all[absolute(r)].assign(next, static_cast<size_t>(length[r]));
  }
  return all;
}

std::vector<std::vector<double>> gather(Communicator& comm, std::span<const double> values, int root) {
  std::string mine(values.size_bytes(), '\0');
  if (!values.empty()) std::memcpy(mine.data(), values.data(), mine.size());
  std::vector<std::vector<double>> all;
  for (const std::string& bytes : gather_strings(comm, mine, root)) {
    std::vector<double>& theirs = all.emplace_back(bytes.size() / sizeof(double));
    if (!bytes.empty()) std::memcpy(theirs.data(), bytes.data(), bytes.size());
  }
  return all;
}

bool any(Communicator& comm, bool value) {
  const double mine = value ? 1.0 : 0.0;
  return all_reduce_sum(comm, std::span(&mine, 1))[0] > 0.0;
}

}  // namespace pptrain::comm

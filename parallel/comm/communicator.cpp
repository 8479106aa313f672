#include "parallel/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

#include "parallel/comm/operands.h"
#include "parallel/comm/rank_order_sum.h"
#include "parallel/comm/split.h"

namespace pptrain::comm {
namespace {

// Scratch of an all-reduce: at most this much, whatever the tensor's size.
constexpr int64_t piece_bytes = 16 << 20;
// Up to here every rank receives everybody's whole tensor: one exchange instead of two.
constexpr int64_t direct_bytes = 32 << 10;

using Works = std::vector<std::unique_ptr<Work>>;

void wait_all(const Works& works, const char* what) {
  for (const auto& work : works) {
    work->wait([what] { return std::string(what); });
  }
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

void all_reduce_direct(Communicator& comm, at::Tensor flat) {
  const int me = comm.rank();
  const int size = comm.size();
  at::Tensor others = at::empty({size, flat.numel()}, flat.options());
  Works works;
  for (int r = 0; r < size; ++r) {
    if (r != me) works.push_back(comm.irecv(others.select(0, r), r));
  }
  for (int r = 0; r < size; ++r) {
    if (r != me) works.push_back(comm.isend(flat, r));
  }
  wait_all(works, "all_reduce_sum");
  sum_in_rank_order(flat, others, me, size);
}

// Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size of
// the tensor.
void all_reduce_chunked(Communicator& comm, at::Tensor flat, at::Tensor scratch) {
  const int me = comm.rank();
  const int size = comm.size();
  const int64_t n = flat.numel();
  const auto chunk = [&](int r) {
    const int64_t begin = n * r / size;
    return flat.narrow(0, begin, n * (r + 1) / size - begin);
  };
  const at::Tensor own = chunk(me);
  const at::Tensor others = scratch.narrow(0, 0, size * own.numel()).view({size, own.numel()});
  Works works;
  for (int step = 1; step < size; ++step) {
    const int r = (me + size - step) % size;
    if (own.numel() > 0) works.push_back(comm.irecv(others.select(0, r), r));
  }
  for (int step = 1; step < size; ++step) {
    const int r = (me + step) % size;
    if (chunk(r).numel() > 0) works.push_back(comm.isend(chunk(r), r));
  }
  wait_all(works, "all_reduce_sum, exchange of chunks");
  works.clear();
  sum_in_rank_order(own, others, me, size);
  for (int step = 1; step < size; ++step) {
    const int r = (me + size - step) % size;
    if (chunk(r).numel() > 0) works.push_back(comm.irecv(chunk(r), r));
  }
  for (int step = 1; step < size; ++step) {
    const int r = (me + step) % size;
    if (own.numel() > 0) works.push_back(comm.isend(own, r));
  }
  wait_all(works, "all_reduce_sum, all-gather");
}

}  // namespace

// a + b has the bits of b + a, so the sum may start in either operand.
void sum_in_rank_order(at::Tensor own, at::Tensor others, int me, int size) {
  if (me == 0) {
    for (int r = 1; r < size; ++r) own.add_(others.select(0, r));
    return;
  }
  at::Tensor sum = others.select(0, 0);
  for (int r = 1; r < me; ++r) sum.add_(others.select(0, r));
  own.add_(sum);
  for (int r = me + 1; r < size; ++r) own.add_(others.select(0, r));
}

void Communicator::all_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "all_reduce_sum");
  if (size() == 1 || tensor.numel() == 0) return;
  const c10::InferenceMode guard;
  at::Tensor flat = tensor.view({-1});
  if (bytes_of(flat) <= direct_bytes) return all_reduce_direct(*this, flat);
  const int64_t piece = std::max<int64_t>(piece_bytes / static_cast<int64_t>(flat.element_size()), size());
  const int64_t largest = std::min(piece, flat.numel());
  const at::Tensor scratch = at::empty({(largest + size() - 1) / size() * size()}, flat.options());
  for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
    all_reduce_chunked(*this, flat.narrow(0, begin, std::min(piece, flat.numel() - begin)), scratch);
  }
}

// Binomial tree: in the round of distance d = 1, 2, 4, ..., ranks below d (relative to the root) send to rank
// + d.
void Communicator::broadcast(at::Tensor tensor, int root) {
  check_contiguous(tensor, "broadcast");
  if (root < 0 || root >= size()) {
    throw Error(fmt::format("broadcast: root {} is not a rank of a group of {}", root, size()));
  }
  if (tensor.numel() == 0) return;
  const int relative = (rank() - root + size()) % size();
  const auto world = [&](int r) { return (r + root) % size(); };
  int distance = 1;
  while (distance <= relative) distance *= 2;
  if (relative > 0) {
    irecv(tensor, world(relative - distance / 2))->wait([] { return "broadcast"; });
  }
  Works works;
  for (; relative + distance < size(); distance *= 2) {
    works.push_back(isend(tensor, world(relative + distance)));
  }
  wait_all(works, "broadcast");
}

// Dissemination barrier (Hensgen, Finkel, Manber 1988): ceil(log2(size)) rounds.
void Communicator::barrier() {
  for (int distance = 1; distance < size(); distance *= 2) {
    const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCPU);
    Works works;
    works.push_back(irecv(at::empty({1}, options), (rank() + size() - distance) % size()));
    works.push_back(isend(at::zeros({1}, options), (rank() + distance) % size()));
    wait_all(works, "barrier");
  }
}

void Communicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  check_contiguous(out, "all_gather");
  check_rows(out, tensor, size());
  const c10::InferenceMode guard;
  const at::Tensor mine = tensor.view({-1});
  const at::Tensor rows = out.view({size(), -1});
  rows.select(0, rank()).copy_(mine, /*non_blocking=*/true);
  if (mine.numel() == 0) return;
  Works works;
  for (int step = 1; step < size(); ++step) {
    const int r = (rank() + size() - step) % size();
    works.push_back(irecv(rows.select(0, r), r));
  }
  for (int step = 1; step < size(); ++step) {
    works.push_back(isend(mine, (rank() + step) % size()));
  }
  wait_all(works, "all_gather");
}

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

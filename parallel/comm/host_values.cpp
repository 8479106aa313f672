#include "parallel/comm/host_values.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "core/base/process.h"
#include "parallel/comm/split.h"

namespace pptrain::comm {
namespace {

using std::chrono::nanoseconds;

at::Tensor tensor_of(std::span<const double> values) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::ranges::copy(values, tensor.data_ptr<double>());
  return tensor;
}

std::vector<double> values_of(const at::Tensor& tensor) {
  const double* begin = tensor.const_data_ptr<double>();
  return {begin, begin + tensor.numel()};
}

}  // namespace

std::vector<int> host_numbers(Communicator& comm, const std::string& name) {
  std::vector<size_t> seen;
  std::vector<int> numbers;
  for (const size_t host : gather_values(comm, std::hash<std::string>()(name))) {
    const auto found = std::ranges::find(seen, host);
    numbers.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(host);
  }
  return numbers;
}

std::string loopback_identity() {
  std::array<char, 64> space{};
  if (readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) space[0] = '\0';
  const std::string boot = boot_id();
  return (boot.empty() ? host_name() : boot) + space.data();
}

bool on_one_host(Communicator& comm) {
  return std::ranges::max(host_numbers(comm, loopback_identity())) == 0;
}

std::vector<double> all_reduce_sum(Communicator& comm, std::span<const double> values) {
  const at::Tensor sum = tensor_of(values);
  comm.host().all_reduce_sum(sum);
  return values_of(sum);
}

void broadcast(Communicator& comm, std::span<double> values, int root) {
  const at::Tensor tensor = tensor_of(values);
  comm.host().broadcast(tensor, root);
  std::ranges::copy(values_of(tensor), values.begin());
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
  // Of this rank and the ranks below it.
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

std::vector<std::string> all_gather_strings(Communicator& comm, const std::string& mine) {
  std::vector<std::string> texts = gather_strings(comm, mine, 0);
  texts.resize(static_cast<size_t>(comm.size()));
  std::vector<double> lengths;
  std::string joined;
  for (const std::string& text : texts) {
    lengths.push_back(static_cast<double>(text.size()));
    joined += text;
  }
  broadcast(comm, lengths, 0);
  joined = broadcast_string(comm, joined, 0);
  size_t begin = 0;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto length = static_cast<size_t>(lengths[rank]);
    texts[rank] = joined.substr(begin, length);
    begin += length;
  }
  return texts;
}

bool any(Communicator& comm, bool value) {
  const double mine = value ? 1.0 : 0.0;
  return all_reduce_sum(comm, std::span(&mine, 1))[0] > 0.0;
}

void Exchange::start(std::span<const double> values) {
  if (work_) throw Error("exchange: the one before is still under way");
  values_ = at::empty({group_->size(), static_cast<int64_t>(values.size())}, at::kDouble);
  work_ = group_->iall_gather(values_, tensor_of(values));
}

std::vector<std::vector<double>> Exchange::wait(const std::string& what) {
  work_->wait([&] { return fmt::format("rank {} waits for {}", group_->rank(), what); });
  work_.reset();
  std::vector<std::vector<double>> result;
  for (int rank = 0; rank < group_->size(); ++rank) result.push_back(values_of(values_.select(0, rank)));
  return result;
}

namespace {

constexpr int round_trips = 8;

int64_t now() {
  return nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string wait_text() {
  return "clock_offset";
}

void send_time(Communicator& comm, int other) {
  const at::Tensor time = at::empty({1}, at::kLong);
  for (int i = 0; i < round_trips; ++i) {
    comm.irecv(time, other)->wait(wait_text);
    *time.data_ptr<int64_t>() = now();
    comm.isend(time, other)->wait(wait_text);
  }
}

nanoseconds ask_time(Communicator& comm) {
  const at::Tensor time = at::empty({1}, at::kLong);
  *time.data_ptr<int64_t>() = 0;
  int64_t quickest = INT64_MAX, offset = 0;
  for (int i = 0; i < round_trips; ++i) {
    const int64_t asked = now();
    comm.isend(time, 0)->wait(wait_text);
    comm.irecv(time, 0)->wait(wait_text);
    const int64_t answered = now();
    if (answered - asked >= quickest) continue;
    quickest = answered - asked;
    offset = *time.const_data_ptr<int64_t>() - (asked + quickest / 2);
  }
  return nanoseconds(offset);
}

}  // namespace

nanoseconds clock_offset(Communicator& comm) {
  const std::string mine = boot_id();
  const std::string roots = broadcast_string(comm, mine, 0);
  return clock_offset(comm, !mine.empty() && mine == roots);
}

nanoseconds clock_offset(Communicator& communicator, bool same_clock) {
  Communicator& comm = communicator.host();
  const double asks = same_clock ? 0 : 1;
  const auto asking = gather(comm, std::span(&asks, 1), 0);
  if (comm.rank() != 0) return same_clock ? nanoseconds(0) : ask_time(comm);
  for (int rank = 1; rank < comm.size(); ++rank) {
    if (asking[rank][0] != 0) send_time(comm, rank);
  }
  return nanoseconds(0);
}

}  // namespace pptrain::comm

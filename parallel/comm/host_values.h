// Values of the host's memory over a communicator, beyond the sums and texts of communicator.h: a value of
// every rank, numbers for all without a wait, one clock.
#pragma once

#include <ATen/ops/empty.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// What each rank gives as `mine`, by rank. T: the same bytes mean the same on all ranks. Collective, on a
// communicator of CPU tensors.
template <typename T>
std::vector<T> gather_values(Communicator& comm, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  const at::Tensor row = at::empty({static_cast<int64_t>(sizeof(T))}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &mine, sizeof(T));
  const at::Tensor rows = at::empty({comm.size(), row.numel()}, at::kByte);
  comm.all_gather(rows, row);
  std::vector<T> values(static_cast<size_t>(comm.size()));
  std::memcpy(values.data(), rows.const_data_ptr(), rows.nbytes());
  return values;
}

// [rank] The number of its host: 0 for rank 0's, 1 for that of the first rank that is on another one, and so
// on. Ranks that give the same name are on one host. Collective.
std::vector<int> host_numbers(Communicator& comm, const std::string& name);
// The kernel's boot and this process's network namespace: equal in two processes that reach each other by
// loopback.
std::string loopback_identity();
// Do all ranks reach each other by loopback? Collective.
bool on_one_host(Communicator& comm);

// Every rank of a group sends the others some numbers, and takes theirs later. One exchange is under way at a
// time. It has a communicator of its own, so that its messages meet no others.
class Exchange {
 public:
  // Collective over `group`.
  explicit Exchange(Communicator& group) : group_(group.host().duplicate()) {}

  // Sends this rank's numbers, as many as every rank sends, to all, without waiting.
  void start(std::span<const double> values);

  // Waits until all ranks have started the exchange. [rank] its numbers, this rank's included. `what`
  // describes the wait for a rank's numbers.
  std::vector<std::vector<double>> wait(const std::string& what);

 private:
  std::unique_ptr<Communicator> group_;
  at::Tensor values_;           // [rank, value]; float64
  std::unique_ptr<Work> work_;  // of the exchange under way
};

// What this rank adds to its std::chrono::steady_clock to get rank 0's. Exactly 0 on rank 0's host. On other
// hosts it comes from the quickest of some round trips, and is wrong by half of it at most. Clocks of hosts
// drift apart by some microseconds a second, so ask again from time to time. Collective.
std::chrono::nanoseconds clock_offset(Communicator& comm);
// The same; each rank says whether it has rank 0's clock.
std::chrono::nanoseconds clock_offset(Communicator& comm, bool same_clock);

}  // namespace pptrain::comm

// A value of a plain type from every rank.
#pragma once

#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstring>
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

}  // namespace pptrain::comm

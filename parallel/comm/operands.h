// What every transport asks of a tensor: contiguous memory that it may treat as bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace pptrain::comm {

inline void check_peer(int peer, int rank, int size, const char* what) {
  if (peer < 0 || peer >= size || peer == rank) {
    throw Error(fmt::format("{}: rank {} of {} cannot exchange with rank {}: give another rank of the group",
                            what, rank, size, peer));
  }
}

inline void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw Error(fmt::format("broadcast: root {} is not a rank of a group of {}", root, size));
  }
}

// 0 to size - 1.
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The place of `rank` among `members`, the ranks of a group to be made of a communicator of `size`.
inline int place_in_group(std::span<const int> members, int rank, int size) {
  int place = -1;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size)
      throw Error(fmt::format("subgroup: rank {} is not in a communicator of {}", members[i], size));
    if (members[i] == rank) place = static_cast<int>(i);
  }
  if (place < 0) throw Error(fmt::format("subgroup: rank {} is no member of the group that it makes", rank));
  return place;
}

inline void check_contiguous(const at::Tensor& tensor, const char* what) {
  if (!tensor.defined() || !tensor.is_contiguous()) {
    throw Error(fmt::format("{}: the tensor must be defined and contiguous; call contiguous() first", what));
  }
}

inline void check_cpu(const at::Tensor& tensor, const char* transport) {
  check_contiguous(tensor, transport);
  if (!tensor.is_cpu()) {
    throw Error(fmt::format(
        "the {} transport carries CPU tensors, but this one is on {}: move CUDA tensors with NCCL", transport,
        tensor.device().str()));
  }
}

inline std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} x {} on {}", tensor.numel(), c10::toString(tensor.scalar_type()),
                     tensor.device().str());
}

inline void check_rows(const at::Tensor& out, const at::Tensor& tensor, int size) {
  if (out.dim() == 0 || out.size(0) != size || out.numel() != size * tensor.numel() ||
      out.scalar_type() != tensor.scalar_type()) {
    throw Error(fmt::format("all_gather: `out` ({}) must hold one row per rank of {} ({} ranks)",
                            describe(out), describe(tensor), size));
  }
}

inline void check_same_kind(const at::Tensor& a, const at::Tensor& b, const char* what) {
  if (a.scalar_type() != b.scalar_type() || a.device() != b.device()) {
    throw Error(
        fmt::format("{}: tensors of one kind are needed, not {} and {}", what, describe(a), describe(b)));
  }
}

// One count per rank, none negative, `elements` in all.
inline void check_counts(std::span<const int64_t> counts, int size, int64_t elements, const char* what) {
  if (static_cast<int64_t>(counts.size()) != size) {
    throw Error(fmt::format("{}: {} counts were given for {} ranks", what, counts.size(), size));
  }
  int64_t sum = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0) throw Error(fmt::format("{}: the count of rank {} is {}", what, r, counts[r]));
    sum += counts[r];
  }
  if (sum != elements) {
    throw Error(
        fmt::format("{}: the counts add up to {}, but the tensor has {} elements", what, sum, elements));
  }
}

// out <- tensor, which may be the same memory. Both flat.
inline void copy_own_part(at::Tensor out, const at::Tensor& tensor) {
  if (tensor.numel() == 0 || out.const_data_ptr() == tensor.const_data_ptr()) return;
  const c10::InferenceMode inference;
  out.copy_(tensor, /*non_blocking=*/true);
}

// What a rank with a message under way waits for, in words.
inline std::string describe_message(bool is_send, int peer) {
  return fmt::format("{} rank {}", is_send ? "its message to be taken by" : "a message from", peer);
}

}  // namespace pptrain::comm

// What every transport asks of a tensor: contiguous memory that it may treat as bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <string>

#include "core/base/error.h"

namespace pptrain::comm {

inline constexpr std::chrono::minutes default_timeout{10};

inline void check_peer(int peer, int rank, int size, const char* what) {
  if (peer < 0 || peer >= size || peer == rank) {
    throw Error(fmt::format("{}: rank {} of {} cannot exchange with rank {}: give another rank of the group",
                            what, rank, size, peer));
  }
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

inline std::string timeout_message(int rank, std::chrono::milliseconds timeout, const std::string& operation,
                                   const std::string& what) {
  return fmt::format("rank {} waited {:.1f} s for {}{}{}; a peer is stuck or slower than the timeout", rank,
                     std::chrono::duration<double>(timeout).count(), operation, what.empty() ? "" : ": ",
                     what);
}

}  // namespace pptrain::comm

// Finds what work costs by doing it on tensors of the meta device, which have shapes and no memory: kernels
// check their arguments and record their cost instead of running.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/kernels/back_ends.h"
#include "core/kernels/cost.h"
#include "core/kernels/device_name.h"

namespace pptrain::kernels {

// While a DryRun lives, it sums up the costs that its thread records, and counts the memory that the tensors
// made on its thread would take. Runs of one thread may nest: the innermost alone counts. It ends on the
// thread that began it, and the inner one first.
//
// The bytes of a tensor are those of its storage, counted once however many views share it, from the tensor's
// making until the last of them is gone, on whichever thread that happens. Not counted: storage that grows
// with resize_, and a library's own memory, unless record_scratch says so.
class DryRun {
 public:
  // `gpu`: that the work is to run on; without one it is a CPU's.
  explicit DryRun(GpuKind gpu = {});
  ~DryRun();
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  const Cost& cost() const { return cost_; }
  const GpuKind& gpu() const { return gpu_; }
  int64_t current_bytes() const { return *current_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }  // the most at any time since reset_peak
  void reset_peak() { peak_bytes_ = current_bytes(); }

  // The innermost run of this thread; null without one.
  static DryRun* innermost();

 private:
  friend class CountingMetaAllocator;
  friend void record(const Cost& cost);
  friend void record_scratch(int64_t bytes, BackEnd taker);

  DryRun* outer_;
  GpuKind gpu_;
  Cost cost_;
  std::shared_ptr<std::atomic<int64_t>> current_bytes_;  // tensors that outlive the run still reach it
  int64_t peak_bytes_ = 0;
};

// Adds to the innermost DryRun of this thread; does nothing without one. Kernels call it themselves; other
// code that works on meta tensors (attention by a library, say) states its own cost.
void record(const Cost& cost);

// Counts memory that a back end or its library takes in addition to a call's arguments and gives back before
// the call returns. Counts in the innermost DryRun of this thread; does nothing without one, or if that
// stands for the other back end.
void record_scratch(int64_t bytes, BackEnd taker = BackEnd::cuda);

// LibTorch's operators of these names, with their cost recorded.
void copy(const at::Tensor& from, const at::Tensor& to);
at::Tensor contiguous(const at::Tensor& x);
void add(const at::Tensor& sum, const at::Tensor& x);  // sum += x, rounded to the type of sum

// cuBLAS's workspace: 32 MiB on Hopper, and everywhere with train.deterministic (numerics.h), less elsewhere.
// LibTorch allocates one for each stream of a thread at the first GEMM there, and keeps it.
inline constexpr int64_t gemm_workspace_bytes = int64_t{32} << 20;

// The kind that the innermost DryRun of this thread stands for; none without one.
GpuKind dry_gpu();

// Whether there is nothing to compute, because the tensor has no memory.
inline bool is_dry(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_meta();
}

}  // namespace pptrain::kernels

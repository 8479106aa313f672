#include "core/kernels/dry_run.h"

#include <c10/core/Allocator.h>

#include <algorithm>

namespace pptrain::kernels {
namespace {

thread_local DryRun* innermost_run = nullptr;

// What a counted storage holds instead of memory.
struct Counted {
  std::shared_ptr<std::atomic<int64_t>> current_bytes;
  int64_t bytes;
};

void uncount(void* context) {
  const std::unique_ptr<Counted> counted(static_cast<Counted*>(context));
  *counted->current_bytes -= counted->bytes;
}

void do_nothing(void*) {}

}  // namespace

// Takes the place of LibTorch's allocator of the meta device, which gives null for any size, and does the
// same; but on a thread with a DryRun, the null pointer carries a context that its owner frees.
class CountingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const c10::Device device(c10::DeviceType::Meta);
    DryRun* const run = innermost_run;
    if (run == nullptr || size == 0) return {nullptr, nullptr, do_nothing, device};
    const auto bytes = static_cast<int64_t>(size);
    auto counted = std::make_unique<Counted>(run->current_bytes_, bytes);
    run->peak_bytes_ = std::max(run->peak_bytes_, *run->current_bytes_ += bytes);
    return {nullptr, counted.release(), uncount, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return do_nothing; }
  void copy_data(void*, const void*, size_t) const override {}
};

namespace {

// LibTorch asks for the allocator at each tensor, so that it may be put in place while others make meta
// tensors: they use this one or the one before, which are equal outside of a DryRun.
void install_allocator() {
  static CountingMetaAllocator allocator;
  [[maybe_unused]] static const bool installed = [] {
    c10::SetAllocator(c10::DeviceType::Meta, &allocator);
    return true;
  }();
}

}  // namespace

DryRun::DryRun(GpuKind gpu)
    : outer_(innermost_run), gpu_(gpu), current_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {
  install_allocator();
  innermost_run = this;
}

DryRun::~DryRun() {
  innermost_run = outer_;
}

DryRun* DryRun::innermost() {
  return innermost_run;
}

void record(const Cost& cost) {
  if (innermost_run != nullptr) innermost_run->cost_ += cost;
}

void record_scratch(int64_t bytes, BackEnd taker) {
  if (innermost_run == nullptr || dry_gpu().is_gpu() != (taker == BackEnd::cuda)) return;
  innermost_run->peak_bytes_ = std::max(innermost_run->peak_bytes_, innermost_run->current_bytes() + bytes);
}

GpuKind dry_gpu() {
  return innermost_run == nullptr ? GpuKind() : innermost_run->gpu();
}

void copy(const at::Tensor& from, const at::Tensor& to) {
  to.copy_(from);
  record(moving(from, to));
}

at::Tensor contiguous(const at::Tensor& x) {
  at::Tensor result = x.contiguous();
  if (!result.is_same(x)) record(moving(x, result));
  return result;
}

void add(const at::Tensor& sum, const at::Tensor& x) {
  record(moving(sum, sum, x));
  sum.add_(x);
}

}  // namespace pptrain::kernels

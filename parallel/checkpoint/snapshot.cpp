#include "parallel/checkpoint/snapshot.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

namespace pptrain::checkpoint {
namespace {

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

}  // namespace

Snapshot::Snapshot(std::vector<StageContents> stages) : stages_(std::move(stages)) {
  for (const StageContents& stage : stages_) {
    for (const auto& [file, tensors] : stage.files) {
      for (const NamedTensor& t : tensors) {
        held_[&t].source = t.tensor.contiguous().view({-1});
        if (!t.tensor.is_cpu()) device_ = t.tensor.device();
      }
    }
  }
  if (!device_) return;
  written_.emplace(device_->type());
  written_->record(c10::impl::VirtualGuardImpl(device_->type()).getStream(*device_));
}

void Snapshot::keep_host_copies(std::optional<c10::Stream>& side) {
  if (!device_) return;
  if (!side) side = c10::impl::VirtualGuardImpl(device_->type()).getStreamFromGlobalPool(*device_);
  written_->block(*side);
  const c10::StreamGuard guard(*side);
  const std::lock_guard lock(mutex_);
  for (auto& [tensor, held] : held_) {
    if (held.source.is_cpu()) continue;
    const auto options = held.source.options().device(at::kCPU).pinned_memory(true);
    const at::Tensor host = at::empty(held.source.sizes(), options);
    host.copy_(held.source, /*non_blocking=*/true);
    held.source = host;  // the tensor itself lives as long as stages_
  }
  on_host_.emplace(device_->type());
  on_host_->record(*side);
}

void Snapshot::read(const NamedTensor& tensor, uint64_t begin, std::span<std::byte> out) {
  if (out.empty()) return;
  // On a new thread GPU 0 is current, and CUDA would make a context there.
  const c10::OptionalDeviceGuard device(device_);
  if (on_host_) {
    on_host_->synchronize();
  } else if (written_) {
    written_->synchronize();  // this thread's stream is not the one that wrote
  }
  const std::lock_guard lock(mutex_);
  Held& held = held_.at(&tensor);
  const at::Tensor& source = held.source;
  if (source.is_cpu()) {
    std::memcpy(out.data(), bytes_of(source) + (begin - held.begin), out.size());
  } else {
    const auto size = static_cast<int64_t>(source.element_size());
    const auto first = static_cast<int64_t>(begin - held.begin) / size;
    const at::Tensor part = source.narrow(0, first, static_cast<int64_t>(out.size()) / size).cpu();
    std::memcpy(out.data(), part.const_data_ptr(), out.size());
  }
  held.next = begin + out.size();
  if (held.next - held.begin == source.nbytes()) held.source.reset();
}

void Snapshot::protect() {
  if (on_host_) on_host_->block(c10::impl::VirtualGuardImpl(device_->type()).getStream(*device_));
  const std::lock_guard lock(mutex_);
  if (std::exchange(protected_, true)) return;
  for (auto& [tensor, held] : held_) {
    // The copy made by keep_host_copies() needs no other copy.
    if (held.source.defined() && !(on_host_ && !tensor->tensor.is_cpu())) copied_bytes_ += copy_rest(held);
  }
}

uint64_t Snapshot::copy_rest(Held& held) {
  const auto size = static_cast<int64_t>(held.source.element_size());
  const auto read = static_cast<int64_t>(held.next - held.begin) / size;
  const at::Tensor rest = held.source.narrow(0, read, held.source.numel() - read);
  const at::Tensor copy = at::empty(rest.sizes(), rest.options().device(at::kCPU));
  if (rest.is_cpu()) {
    if (rest.nbytes() > 0) std::memcpy(copy.mutable_data_ptr(), rest.const_data_ptr(), rest.nbytes());
  } else {
    copy.copy_(rest);
  }
  held.begin = held.next;
  held.source = copy;
  return copy.nbytes();
}

}  // namespace pptrain::checkpoint

#include "parallel/checkpoint/snapshot.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pptrain::checkpoint {
namespace {

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

constexpr int64_t pinned_bytes = int64_t{64} << 20;

// Copies to pinned memory, which a GPU writes at the full rate. `pinned`: taken at the first call.
at::Tensor to_pinned(const at::Tensor& from, at::Tensor& pinned) {
  if (!pinned.defined())
    pinned = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
  return pinned.narrow(0, 0, from.numel()).copy_(from);
}

}  // namespace

Snapshot::Snapshot(std::vector<StageContents> stages, std::optional<c10::Stream>& side)
    : stages_(std::move(stages)) {
  std::optional<c10::Device> device;
  for (const StageContents& stage : stages_) {
    for (const auto& [file, tensors] : stage.files) {
      for (const NamedTensor& t : tensors) {
        held_[&t].source = t.tensor.contiguous().view({-1});
        if (!t.tensor.is_cpu()) device = t.tensor.device();
      }
    }
  }
  if (!device) return;
  const c10::impl::VirtualGuardImpl streams(device->type());
  if (!side) side = streams.getStreamFromGlobalPool(*device);
  c10::Event written(device->type());
  written.record(streams.getStream(*device));
  written.block(*side);
  side_ = side;
}

void Snapshot::read(const NamedTensor& tensor, uint64_t begin, std::span<std::byte> out) {
  if (out.empty()) return;
  const c10::OptionalStreamGuard guard(side_);
  const std::lock_guard lock(mutex_);
  Held& held = held_.at(&tensor);
  const auto size = static_cast<int64_t>(held.source.element_size());
  const auto first = static_cast<int64_t>(begin - held.begin) / size;
  const at::Tensor part = held.source.narrow(0, first, static_cast<int64_t>(out.size()) / size).cpu();
  std::memcpy(out.data(), bytes_of(part), out.size());
  held.next = begin + out.size();
  if (held.next - held.begin == held.source.nbytes()) held.source.reset();
}

void Snapshot::protect() {
  const c10::OptionalStreamGuard guard(side_);
  const std::lock_guard lock(mutex_);
  if (std::exchange(protected_, true)) return;
  for (auto& [tensor, held] : held_) {
    if (held.source.defined()) copied_bytes_ += copy_rest(held);
  }
}

uint64_t Snapshot::copy_rest(Held& held) {
  const auto size = static_cast<int64_t>(held.source.element_size());
  const auto read = static_cast<int64_t>(held.next - held.begin) / size;
  const at::Tensor rest = held.source.narrow(0, read, held.source.numel() - read);
  const at::Tensor copy = at::empty(rest.sizes(), rest.options().device(at::kCPU));
  const int64_t piece = rest.is_cpu() ? rest.numel() : pinned_bytes / size;
  at::Tensor pinned;
  for (int64_t begin = 0; begin < rest.numel(); begin += piece) {
    at::Tensor from = rest.narrow(0, begin, std::min(piece, rest.numel() - begin));
    if (!from.is_cpu()) from = to_pinned(from, pinned);
    std::memcpy(copy.narrow(0, begin, from.numel()).mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
  held.begin = held.next;
  held.source = copy;
  return copy.nbytes();
}

}  // namespace pptrain::checkpoint

#include "core/fault/memory_guard.h"

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace pptrain::fault {

namespace {

// Above this many bytes a tensor is divided among several threads.
constexpr int64_t bytes_of_a_thread = int64_t{1} << 20;

uint64_t sum_on_host(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  std::atomic<uint64_t> sum = 0;
  at::parallel_for(0, (bytes + bytes_of_a_thread - 1) / bytes_of_a_thread, 1,
                   [&](int64_t first, int64_t last) {
                     const int64_t from = first * bytes_of_a_thread;
                     const int64_t to = std::min(last * bytes_of_a_thread, bytes);
                     sum += sum_of_words({begin + from, static_cast<size_t>(to - from)});
                   });
  return sum;
}

}  // namespace

uint64_t sum_of_words(std::span<const std::byte> bytes) {
  constexpr size_t lanes = 8;
  std::array<uint64_t, lanes> sums{};
  std::array<uint64_t, lanes> words;
  size_t at = 0;
  for (; at + sizeof(words) <= bytes.size(); at += sizeof(words)) {
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < lanes; ++i) sums[i] += words[i];
  }
  words = {};
  if (at < bytes.size()) std::memcpy(words.data(), bytes.data() + at, bytes.size() - at);
  uint64_t sum = 0;
  for (size_t i = 0; i < lanes; ++i) sum += sums[i] + words[i];
  return sum;
}

void MemoryGuard::watch(std::string name, at::Tensor tensor) {
  if (!tensor.is_contiguous() || (tensor.element_size() != 2 && tensor.element_size() != 4))
    throw Error(fmt::format("{} cannot be watched: it is not contiguous, of elements of 2 or 4 bytes", name));
  names_.push_back(std::move(name));
  tensors_.push_back(std::move(tensor));
  sums_.clear();
}

// On a device the sum is of elements' bits, as 64-bit integers: all tensors' sums come over in one copy.
std::vector<uint64_t> MemoryGuard::sums() const {
  std::vector<uint64_t> result;
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& tensor : tensors_) {
    if (tensor.is_cpu()) {
      result.push_back(sum_on_host(tensor));
    } else {
      on_device.push_back(tensor.view(tensor.element_size() == 4 ? at::kInt : at::kShort).sum());
    }
  }
  if (on_device.empty()) return result;
  const at::Tensor on_host = at::stack(on_device).cpu();
  const auto* const begin = on_host.const_data_ptr<int64_t>();
  result.insert(result.end(), begin, begin + on_host.numel());
  return result;
}

std::optional<std::string> MemoryGuard::find_change() const {
  if (sums_.empty()) return std::nullopt;
  const std::vector<uint64_t> now = sums();
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] != sums_[i]) return names_[i];
  }
  return std::nullopt;
}

}  // namespace pptrain::fault

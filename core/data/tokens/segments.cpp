#include "core/data/tokens/segments.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace pptrain::tokens {

// If the memory is not pinned, the host waits for the copy, and so for all that the stream holds. Pinned
// memory that a copy still reads is not handed out again before the copy is done.
at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

namespace {

at::Tensor on_device(const std::vector<int32_t>& starts, at::Device device) {
  const auto kind = at::TensorOptions().dtype(at::kInt);
  if (device.is_meta()) return at::empty({static_cast<int64_t>(starts.size())}, kind.device(device));
  return to_device(at::tensor(starts, kind), device);
}

}  // namespace

Segments make_segments(std::vector<int32_t> starts, at::Device device) {
  if (starts.size() < 2 || starts.front() != 0) {
    throw Error(fmt::format("segments: [{}] must begin at 0 and end with the number of tokens",
                            fmt::join(starts, ", ")));
  }
  int64_t longest = 0;
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] <= starts[i - 1]) {
      throw Error(fmt::format("segments: document {} would be the tokens [{}, {}), but none may be empty",
                              i - 1, starts[i - 1], starts[i]));
    }
    longest = std::max<int64_t>(longest, starts[i] - starts[i - 1]);
  }
  at::Tensor tensor = on_device(starts, device);
  return {.starts = std::move(tensor), .host_starts = std::move(starts), .longest = longest};
}

Segments equal_segments(int64_t documents, int64_t length, at::Device device) {
  if (documents < 1 || length < 1 || length > std::numeric_limits<int32_t>::max() / documents) {
    throw Error(fmt::format(
        "segments: {} documents of {} tokens: both must be positive, and all tokens fewer than 2^31",
        documents, length));
  }
  std::vector<int32_t> starts;
  starts.reserve(static_cast<size_t>(documents) + 1);
  for (int64_t i = 0; i <= documents; ++i) starts.push_back(static_cast<int32_t>(i * length));
  return make_segments(std::move(starts), device);
}

}  // namespace pptrain::tokens

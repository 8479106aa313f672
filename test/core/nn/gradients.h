// Helpers of tests for a parameter group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/nn/parameter.h"
#include "test/support/ops.h"

namespace pptrain::test {

// All main gradients: a copy, flat, one slice after the other.
inline at::Tensor all_gradients(nn::ParameterGroup& group) {
  std::vector<at::Tensor> parts;
  for (const nn::Slice* slice : group.slices()) parts.push_back(slice->grad.reshape({-1}));
  return test::cat(parts);
}

// Bytes that releasable whole compute weights and gradients hold now.
inline int64_t whole_bytes(nn::ParameterGroup& group) {
  size_t bytes = 0;
  for (const nn::Buffer* buffer : group.buffers()) {
    if (group.is_sharded()) bytes += buffer->whole_compute.storage().nbytes();
    if (group.place().own_gradient && buffer->whole_grad.defined())
      bytes += buffer->whole_grad.storage().nbytes();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace pptrain::test

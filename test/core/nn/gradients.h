// All main gradients of a group, for comparisons.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>

#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::test {

// A copy, flat: one slice after the other.
inline at::Tensor all_gradients(nn::ParameterGroup& group) {
  std::vector<at::Tensor> parts;
  for (const nn::Slice* slice : group.slices()) parts.push_back(slice->grad.reshape({-1}));
  return at::cat(parts);
}

}  // namespace pptrain::test

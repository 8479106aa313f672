// What attention needs to know of a microbatch's tokens beside their activations. The same for every layer of
// a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/kernels.h"
#include "core/kernels/segments.h"

namespace pptrain::nn {

struct TokenInfo {
  at::Tensor positions;  // int32 [tokens]: each token's place in its document, a row of the rotary tables
  kernels::Segments segments;  // where the documents lie
  kernels::RopeTable rope;
};

}  // namespace pptrain::nn

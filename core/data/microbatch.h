// What one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/kernels/segments.h"

namespace pptrain::data {

// Labels with this value do not count.
inline constexpr int64_t ignore_label = -100;

// One list of tokens: the documents, or rows, of the microbatch one after the other. Every rank derives its
// microbatches from the same sampler, so all but the ids is known everywhere without a handshake. tokens are
// defined on ranks that hold the first stage, labels where the last stage is; the rest everywhere.
struct Microbatch {
  at::Tensor tokens;           // int64 [T]
  at::Tensor labels;           // int64 [T]
  at::Tensor positions;        // int32 [T]: each token's place in its document
  kernels::Segments segments;  // where the documents lie
  int64_t targets = 0;         // labels that count
};

}  // namespace pptrain::data

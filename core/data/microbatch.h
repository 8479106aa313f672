// What one microbatch brings to a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pptrain::data {

// Labels with this value do not count.
inline constexpr int64_t ignore_label = -100;

// Every rank derives its microbatches from the same sampler, so shapes are known everywhere without a
// handshake. tokens are defined on ranks that hold the first stage, labels where the last stage is; positions
// everywhere.
struct Microbatch {
  at::Tensor tokens;     // int64 [batch, seq]
  at::Tensor labels;     // int64 [batch, seq]
  at::Tensor positions;  // int32 [batch, seq]
  int64_t batch = 0;
  int64_t seq = 0;
};

}  // namespace pptrain::data

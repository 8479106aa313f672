#include "core/kernels/cost.h"

namespace pptrain::kernels {

Cost& Cost::operator+=(const Cost& other) {
  product_flops += other.product_flops;
  attention_flops += other.attention_flops;
  bytes += other.bytes;
  weight_bytes += other.weight_bytes;
  kernels += other.kernels;
  return *this;
}

Cost& Cost::operator-=(const Cost& other) {
  product_flops -= other.product_flops;
  attention_flops -= other.attention_flops;
  bytes -= other.bytes;
  weight_bytes -= other.weight_bytes;
  kernels -= other.kernels;
  return *this;
}

}  // namespace pptrain::kernels

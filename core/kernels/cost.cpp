#include "core/kernels/cost.h"

namespace pptrain::kernels {

Cost& Cost::add(const Cost& other, int sign) {
  product_flops += sign * other.product_flops;
  attention_flops += sign * other.attention_flops;
  bytes += sign * other.bytes;
  weight_bytes += sign * other.weight_bytes;
  kernels += sign * other.kernels;
  for (size_t wire = 0; wire < wire_count; ++wire) {
    traffic[wire].bytes += sign * other.traffic[wire].bytes;
    traffic[wire].messages += sign * other.traffic[wire].messages;
  }
  return *this;
}

}  // namespace pptrain::kernels

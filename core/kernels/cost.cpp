#include "core/kernels/cost.h"

namespace pptrain::kernels {

Cost& Cost::operator+=(const Cost& other) {
  product_flops += other.product_flops;
  attention_flops += other.attention_flops;
  bytes += other.bytes;
  weight_bytes += other.weight_bytes;
  kernels += other.kernels;
  for (size_t wire = 0; wire < wire_count; ++wire) {
    traffic[wire].bytes += other.traffic[wire].bytes;
    traffic[wire].messages += other.traffic[wire].messages;
  }
  return *this;
}

Cost& Cost::operator-=(const Cost& other) {
  product_flops -= other.product_flops;
  attention_flops -= other.attention_flops;
  bytes -= other.bytes;
  weight_bytes -= other.weight_bytes;
  kernels -= other.kernels;
  for (size_t wire = 0; wire < wire_count; ++wire) {
    traffic[wire].bytes -= other.traffic[wire].bytes;
    traffic[wire].messages -= other.traffic[wire].messages;
  }
  return *this;
}

}  // namespace pptrain::kernels

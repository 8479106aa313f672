// What work on tensors costs a device, in numbers from which a model derives seconds.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace pptrain::kernels {

// Which axis carries what a pass exchanges with other ranks.
enum class Wire { tp, cp, ep };
inline constexpr size_t wire_count = 3;
inline constexpr std::array<const char*, wire_count> wire_names{"tp", "cp", "ep"};

// What this rank sends.
struct Traffic {
  double bytes = 0;
  int64_t messages = 0;
  bool operator==(const Traffic&) const = default;
};

// A GEMM takes as long as its operations or its weights' bytes, whichever is longer; everything else takes as
// long as its bytes.
struct Cost {
  double product_flops = 0;                   // of GEMMs: 2 m n k each
  double fp8_flops = 0;                       // of `product_flops`: by GEMMs in FP8
  double attention_flops = 0;                 // of attention's two GEMMs, and of their gradients
  double bytes = 0;                           // read and written, by GEMMs too
  double weight_bytes = 0;                    // of `bytes`: the weights (second operands) that GEMMs read
  int64_t kernels = 0;                        // launches
  std::array<Traffic, wire_count> traffic{};  // [wire]

  const Traffic& on(Wire wire) const { return traffic[static_cast<size_t>(wire)]; }
  Cost& operator+=(const Cost& other) { return add(other, 1); }
  Cost& operator-=(const Cost& other) { return add(other, -1); }
  friend Cost operator+(Cost a, const Cost& b) { return a += b; }
  friend Cost operator-(Cost a, const Cost& b) { return a -= b; }
  bool operator==(const Cost&) const = default;

 private:
  Cost& add(const Cost& other, int sign) {
    product_flops += sign * other.product_flops;
    fp8_flops += sign * other.fp8_flops;
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
};

// The shape of a GEMM: the result is [m, n], and each of its elements is a sum of k products.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;

  auto operator<=>(const GemmShape&) const = default;
};

// Bytes of the elements of one argument of a kernel.
inline double bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.nbytes()) : 0;
}
inline double bytes_of(const std::optional<at::Tensor>& tensor) {
  return tensor ? bytes_of(*tensor) : 0;
}
template <class T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) double bytes_of(T) {
  return 0;
}

// One launch that reads or writes each tensor of its arguments once. A tensor that is read and written counts
// twice if it is given twice.
template <class... Args>
Cost moving(const Args&... args) {
  return {.bytes = (0.0 + ... + bytes_of(args)), .kernels = 1};
}

}  // namespace pptrain::kernels

// One matrix product as cuBLASLt describes it: what blas.cpp runs and tune_products.cpp times.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "core/kernels/cuda/blas.h"
#include "core/kernels/products.h"

namespace pptrain::kernels::cuda {

// Addresses are taken to be aligned to this many bytes at most.
inline constexpr int best_alignment = 16;

// The largest power of two up to best_alignment that all of the operands' addresses are multiples of.
int alignment_of(const ProductOperands& operands);

// Whether products of this type are computed in TF32, as at::globalContext() says.
bool uses_tf32(at::ScalarType type);

// Of the current device. Lives on one thread. cuBLASLt's descriptors are plain memory here: nothing is to be
// destroyed.
class LtProduct {
 public:
  using Algorithm = cublasLtMatmulAlgo_t;
  struct Proposal {
    Algorithm algorithm;
    size_t workspace = 0;  // bytes
  };

  LtProduct(const Product& product, int alignment, bool tf32);

  // At most so many, the one that cuBLASLt takes for fastest first. Sums in parts are added in float32 and in
  // one order. None where cuBLASLt has no algorithm.
  std::vector<Proposal> propose(int most) const;
  // The same for an algorithm from elsewhere; nothing where it cannot serve this product here.
  std::optional<Proposal> check(const Algorithm& algorithm) const;

  // On the current stream; scratch memory is the stream's, from LibTorch's allocator.
  cublasStatus_t run(const ProductOperands& operands, Existing existing, const Proposal& proposal);

 private:
  void describe_operation(bool tf32);
  void describe_layouts();

  Product product_;
  int alignment_;
  cublasLtHandle_t library_ = nullptr;
  // The opaque structures behind cuBLASLt's pointers, which its functions take as non-const.
  mutable cublasLtMatmulDescOpaque_t operation_{};
  mutable cublasLtMatrixLayoutOpaque_t left_{}, right_{}, out_{};
};

}  // namespace pptrain::kernels::cuda

// Stands in for tune_products.cpp in a build without CUDA.
#include "core/base/error.h"
#include "core/kernels/products.h"

namespace pptrain::kernels {

std::string product_library(at::Device device) {
  if (device.is_cuda()) throw Error("this pptrain was built without CUDA");
  return "";
}

std::optional<ProductAlgorithm> tune_product(const Product&, at::Device) {
  throw Error("products are timed on CUDA devices alone");
}

}  // namespace pptrain::kernels

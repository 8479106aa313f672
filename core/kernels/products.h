// Matrix products as a library sees them: their shapes, which of them a piece of work does, and the
// algorithms that were timed for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace pptrain::kernels {

// Of row-major matrices out [m, n], summed over k: nn is a b (matmul), nt a b^T (linear), tn a^T b, whose
// result is float32 (weight gradients).
enum class ProductLayout { nn, nt, tn };

struct Product {
  ProductLayout layout = ProductLayout::nn;
  at::ScalarType type = at::kBFloat16;  // of both operands
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t stride = 0;  // distance of the rows of a, in elements
  bool bias = false;   // [n], added to each row before it is rounded

  auto operator<=>(const Product&) const = default;
};

// What an algorithm may take of scratch memory: what cuBLAS itself takes on Hopper. A constant, so that the
// choice of an algorithm is a function of the product alone.
inline constexpr int64_t most_product_scratch = int64_t{32} << 20;

// "nt 4096 x 11008 over 4096, BFloat16, with bias", for messages.
std::string describe(const Product& product);

// What kernels.h's products are: of matmul, of linear, and of both kinds of weight gradient. What a dry run
// records and what is computed is said here alone, since a timed algorithm is found by it.
Product product_of_matmul(const at::Tensor& a, const at::Tensor& b);
Product product_of_linear(const at::Tensor& x, const at::Tensor& weight, bool bias);
Product product_of_weight_gradient(const at::Tensor& dy, const at::Tensor& x);

// While it lives, collects the products of the kernels that its thread calls, on tensors with memory and in
// dry runs. Those of experts are not among them: how many rows each has is known on the device alone. Records
// of one thread may nest: the innermost alone collects.
class ProductRecord {
 public:
  ProductRecord();
  ~ProductRecord();
  ProductRecord(const ProductRecord&) = delete;
  ProductRecord& operator=(const ProductRecord&) = delete;

  const std::set<Product>& products() const { return products_; }
  void add(const Product& product) { products_.insert(product); }

  static ProductRecord* innermost();  // of this thread; null without one

 private:
  ProductRecord* outer_;
  std::set<Product> products_;
};

// How the library is to compute a product, in its own words: meaningful to one version of it, on one kind of
// device.
using ProductAlgorithm = std::array<uint64_t, 8>;

// What was found to be fastest on one kind of device.
struct ProductTable {
  std::string device;   // as device_name() says
  std::string library;  // as product_library() says
  std::map<Product, ProductAlgorithm> algorithms;

  bool operator==(const ProductTable&) const = default;
};

// The library that computes products on a device, with its version; "" where there is nothing to choose (the
// CPU). Throws Error for a CUDA device in a build without CUDA.
std::string product_library(at::Device device);

// The fastest of what the library proposes for the product, timed now on operands of its own; nothing where
// it proposes nothing, or its operands do not fit into memory. Waits for the device. The same product, with
// and without what was in the result before, is served by one algorithm. Throws Error on the CPU.
std::optional<ProductAlgorithm> tune_product(const Product& product, at::Device device);

// From now on products of this process use these algorithms where they are in the table, and the library's
// first proposal elsewhere. To be called while no product is being begun: before the first step. An empty
// table takes back what was installed. Devices of another name than the table's are not affected.
void install_products(ProductTable table);

// What is installed; never null.
std::shared_ptr<const ProductTable> installed_products();
// Counts the calls of install_products, so that who keeps plans knows when they are stale.
uint64_t products_generation();

}  // namespace pptrain::kernels

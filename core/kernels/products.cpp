#include "core/kernels/products.h"

#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace pptrain::kernels {
namespace {

thread_local ProductRecord* innermost_record = nullptr;

struct Installed {
  std::mutex mutex;
  std::shared_ptr<const ProductTable> table = std::make_shared<const ProductTable>();
  std::atomic<uint64_t> generation = 0;
};

Installed& installed() {
  static Installed instance;
  return instance;
}

const char* name_of(ProductLayout layout) {
  switch (layout) {
    case ProductLayout::nn:
      return "nn";
    case ProductLayout::nt:
      return "nt";
    case ProductLayout::tn:
      return "tn";
  }
  return "?";
}

}  // namespace

Product product_of_matmul(const at::Tensor& a, const at::Tensor& b) {
  return {.layout = ProductLayout::nn,
          .type = a.scalar_type(),
          .m = a.size(0),
          .n = b.size(1),
          .k = a.size(1),
          .stride = a.size(1)};
}

Product product_of_linear(const at::Tensor& x, const at::Tensor& weight, bool bias) {
  return {.layout = ProductLayout::nt,
          .type = x.scalar_type(),
          .m = x.size(0),
          .n = weight.size(0),
          .k = x.size(1),
          .stride = x.size(0) > 1 ? x.stride(0) : x.size(1),
          .bias = bias};
}

Product product_of_weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
  return {.layout = ProductLayout::tn,
          .type = dy.scalar_type(),
          .m = dy.size(1),
          .n = x.size(1),
          .k = dy.size(0),
          .stride = dy.size(1)};
}

std::string describe(const Product& product) {
  return fmt::format("{} {} x {} over {}, {}{}", name_of(product.layout), product.m, product.n, product.k,
                     c10::toString(product.type), product.bias ? ", with bias" : "");
}

ProductRecord::ProductRecord() : outer_(std::exchange(innermost_record, this)) {}

ProductRecord::~ProductRecord() {
  innermost_record = outer_;
}

ProductRecord* ProductRecord::innermost() {
  return innermost_record;
}

void install_products(ProductTable table) {
  Installed& now = installed();
  const std::lock_guard lock(now.mutex);
  if (*now.table == table) return;
  now.table = std::make_shared<const ProductTable>(std::move(table));
  ++now.generation;
}

std::shared_ptr<const ProductTable> installed_products() {
  Installed& now = installed();
  const std::lock_guard lock(now.mutex);
  return now.table;
}

uint64_t products_generation() {
  return installed().generation.load(std::memory_order_acquire);
}

}  // namespace pptrain::kernels

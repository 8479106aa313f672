#include "core/kernels/cuda/blas.h"

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cuda/lt_product.h"
#include "core/kernels/device_name.h"

namespace pptrain::kernels::cuda {
namespace {

// All that the choice of an algorithm may depend on.
struct Key {
  Product product;
  int alignment = 0;
  bool tf32 = false;
  int device = 0;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const {
    const Product& p = key.product;
    uint64_t hash = 0;
    for (const int64_t value :
         {p.m, p.n, p.k, p.stride, static_cast<int64_t>(p.layout) << 8 | (p.bias ? 1 : 0),
          static_cast<int64_t>(p.type) << 16 | key.alignment << 4 | (key.tf32 ? 1 : 0),
          static_cast<int64_t>(key.device)}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// A product with its descriptors and its algorithm.
struct Plan {
  LtProduct product;
  std::optional<LtProduct::Proposal> proposal;  // none: cuBLASLt has no algorithm
};

LtProduct::Proposal tuned(const LtProduct& product, const Product& shape, const ProductAlgorithm& stored) {
  LtProduct::Algorithm algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(ProductAlgorithm));
  std::memcpy(algorithm.data, stored.data(), sizeof(algorithm.data));
  const std::optional<LtProduct::Proposal> proposal = product.check(algorithm);
  if (!proposal) {
    throw Error(
        "cuBLASLt refuses the algorithm that products.json names for the product " + describe(shape) +
        ": delete that file in the run's folder, and the start will time them anew (a training start; "
        "eval and generate then take the library's first choice, or use "
        "--set train.tune_products=false)");
  }
  return *proposal;
}

Plan make_plan(const Key& key) {
  Plan plan{.product = LtProduct(key.product, key.alignment, key.tf32), .proposal = std::nullopt};
  const std::shared_ptr<const ProductTable> table = installed_products();
  const auto known = table->algorithms.find(key.product);
  if (key.alignment == best_alignment && known != table->algorithms.end() &&
      table->device == device_name({at::kCUDA, static_cast<at::DeviceIndex>(key.device)})) {
    plan.proposal = tuned(plan.product, key.product, known->second);
  } else if (const auto proposals = plan.product.propose(1); !proposals.empty()) {
    plan.proposal = proposals.front();
  }
  return plan;
}

// A thread's plans: nobody else looks at them, so that finding one takes no lock. Documents of any length
// make any number of shapes: where there are too many, all are dropped and the ones in use come back.
class Plans {
 public:
  Plan& of(const Key& key) {
    if (const uint64_t generation = products_generation(); generation != generation_) {
      plans_.clear();
      generation_ = generation;
    }
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    if (plans_.size() >= most_plans) plans_.clear();
    return plans_.emplace(key, make_plan(key)).first->second;
  }

 private:
  static constexpr size_t most_plans = 4096;  // 700 bytes each
  std::unordered_map<Key, Plan, KeyHash> plans_;
  uint64_t generation_ = 0;
};

Plan& plan_of(const Product& product, const ProductOperands& operands) {
  thread_local Plans plans;
  return plans.of({.product = product,
                   .alignment = alignment_of(operands),
                   .tf32 = uses_tf32(product.type),
                   .device = c10::cuda::current_device()});
}

}  // namespace

bool takes_bias(const Product& product, const ProductOperands& operands) {
  return plan_of(product, operands).proposal.has_value();
}

void multiply(const Product& product, const ProductOperands& operands, Existing existing) {
  Plan& plan = plan_of(product, operands);
  if (!plan.proposal) throw Error("cuBLASLt has no algorithm for the product " + describe(product));
  const cublasStatus_t status = plan.product.run(operands, existing, *plan.proposal);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error("cublasLtMatmul for the product " + describe(product) + ": " +
                cublasLtGetStatusString(status));
  }
}

}  // namespace pptrain::kernels::cuda

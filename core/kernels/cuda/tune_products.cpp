// Times what cuBLASLt proposes for a product.
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/cuda_handle.h"
#include "core/base/error.h"
#include "core/kernels/cuda/lt_product.h"
#include "core/kernels/kernels.h"
#include "core/kernels/products.h"

namespace pptrain::kernels {
namespace {

using cuda::LtProduct;
using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>;

constexpr int most_proposals = 8;
constexpr int most_sets = 8;  // of operands
constexpr int rounds = 3;     // of which the fastest counts
constexpr int64_t filled_at_once = int64_t{1} << 24;
constexpr double round_ms = 5;

// Normal values, which take the power that a run's values take; the same ones again and again.
at::Tensor operand(int64_t elements, at::ScalarType type, at::Device device, uint64_t key) {
  at::Tensor values = at::empty({elements}, at::TensorOptions().device(device).dtype(type));
  if (elements == 0) return values;
  at::Tensor some = at::empty({std::min(elements, filled_at_once)}, values.options().dtype(at::kFloat));
  normal_values(some, key, 0, 1);
  for (int64_t first = 0; first < elements; first += some.numel()) {
    const int64_t count = std::min(some.numel(), elements - first);
    values.narrow(0, first, count).copy_(some.narrow(0, 0, count));
  }
  return values;
}

// Several sets in turn, so that none is found in the cache.
class Operands {
 public:
  Operands(const Product& product, at::Device device) {
    const at::ScalarType out_type = product.layout == ProductLayout::tn ? at::kFloat : product.type;
    const int64_t a_rows = product.layout == ProductLayout::tn ? product.k : product.m;
    const int64_t bytes = static_cast<int64_t>(c10::elementSize(product.type)) *
                              (a_rows * product.stride + product.n * product.k) +
                          static_cast<int64_t>(c10::elementSize(out_type)) * product.m * product.n;
    const int64_t cache = at::cuda::getDeviceProperties(device.index())->l2CacheSize;
    const int64_t sets = std::clamp<int64_t>(2 * cache / bytes + 1, 1, most_sets);
    for (int64_t i = 0; i < sets; ++i) {
      add(operand(a_rows * product.stride, product.type, device, 1));
      add(operand(product.n * product.k, product.type, device, 2));
      add(operand(product.bias ? product.n : 0, product.type, device, 3));
      add(operand(product.m * product.n, out_type, device, 4));
      sets_.push_back({.a = tensors_[tensors_.size() - 4].data_ptr(),
                       .b = tensors_[tensors_.size() - 3].data_ptr(),
                       .bias = product.bias ? tensors_[tensors_.size() - 2].data_ptr() : nullptr,
                       .out = tensors_[tensors_.size() - 1].data_ptr()});
    }
  }

  const cuda::ProductOperands& operator[](int run) const {
    return sets_[static_cast<size_t>(run) % sets_.size()];
  }

 private:
  void add(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  std::vector<at::Tensor> tensors_;
  std::vector<cuda::ProductOperands> sets_;
};

class Stopwatch {
 public:
  Stopwatch() {
    C10_CUDA_CHECK(cudaEventCreate(begin_.receive()));
    C10_CUDA_CHECK(cudaEventCreate(end_.receive()));
  }

  // Milliseconds of what `work` puts on the current stream.
  template <class Work>
  double time(const Work& work) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cudaEventRecord(begin_.get(), stream));
    work();
    C10_CUDA_CHECK(cudaEventRecord(end_.get(), stream));
    C10_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float ms = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_.get(), end_.get()));
    return ms;
  }

 private:
  CudaEvent begin_, end_;
};

// Milliseconds of one product; infinite where the proposal does not run. Weight gradients are added to, as in
// all microbatches but the first.
double time_of(LtProduct& product, ProductLayout layout, const LtProduct::Proposal& proposal,
               const Operands& operands, Stopwatch& watch) {
  const auto existing = layout == ProductLayout::tn ? cuda::Existing::added : cuda::Existing::overwritten;
  bool runs = true;
  const auto run = [&](int count) {
    for (int i = 0; i < count; ++i)
      runs = product.run(operands[i], existing, proposal) == CUBLAS_STATUS_SUCCESS && runs;
  };
  watch.time([&] { run(2); });  // loads the kernel
  if (!runs) {
    static_cast<void>(cudaGetLastError());  // the proposal's fault, not the next kernel's
    return std::numeric_limits<double>::infinity();
  }
  const double first = watch.time([&] { run(2); }) / 2;
  const int count = static_cast<int>(std::clamp(round_ms / std::max(first, 1e-3), 3.0, 100.0));
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds && runs; ++round)
    best = std::min(best, watch.time([&] { run(count); }) / count);
  return runs ? best : std::numeric_limits<double>::infinity();
}

// cuBLASLt's own first choice stands where no other is a hundredth faster.
std::optional<ProductAlgorithm> fastest(const Product& shape, at::Device device) {
  LtProduct product(shape, cuda::best_alignment, cuda::uses_tf32(shape.type));
  const std::vector<LtProduct::Proposal> proposals = product.propose(most_proposals);
  if (proposals.empty()) return std::nullopt;
  const Operands operands(shape, device);
  Stopwatch watch;
  std::vector<double> times;
  for (const LtProduct::Proposal& proposal : proposals)
    times.push_back(time_of(product, shape.layout, proposal, operands, watch));
  const auto least = std::min_element(times.begin(), times.end());
  if (*least == std::numeric_limits<double>::infinity()) return std::nullopt;
  const auto chosen = times.front() <= 1.01 * *least ? times.begin() : least;
  ProductAlgorithm result{};
  std::memcpy(result.data(), proposals[static_cast<size_t>(chosen - times.begin())].algorithm.data,
              sizeof(result));
  return result;
}

}  // namespace

std::string product_library(at::Device device) {
  return device.is_cuda() ? "cuBLASLt " + std::to_string(cublasLtGetVersion()) : std::string();
}

std::optional<ProductAlgorithm> tune_product(const Product& product, at::Device device) {
  if (!device.is_cuda()) throw Error("products are timed on CUDA devices alone");
  const c10::cuda::CUDAGuard guard(device);
  std::optional<ProductAlgorithm> result;
  try {
    result = fastest(product, device);
  } catch (const c10::OutOfMemoryError&) {
    // As if nothing had been proposed.
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  return result;
}

}  // namespace pptrain::kernels

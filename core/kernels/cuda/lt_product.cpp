#include "core/kernels/cuda/lt_product.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "core/base/error.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr auto most_scratch = static_cast<size_t>(most_product_scratch);

void check_status(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

// One a device, for all threads and streams, as cuBLASLt allows. They live as long as the process: at its end
// the CUDA runtime may be gone before any destructor.
cublasLtHandle_t library_of_current_device() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> libraries;
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& library = libraries[c10::cuda::current_device()];
  if (library == nullptr) check_status(cublasLtCreate(&library), "cublasLtCreate");
  return library;
}

cudaDataType_t data_type(at::ScalarType type) {
  return type == at::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_status(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  check_status(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
               "cublasLtMatmulPreferenceSetAttribute");
}

// As it lies in memory, column by column.
void describe(cublasLtMatrixLayoutOpaque_t& layout, cudaDataType_t type, int64_t rows, int64_t columns,
              int64_t distance) {
  check_status(cublasLtMatrixLayoutInit(&layout, type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), distance),
               "cublasLtMatrixLayoutInit");
}

}  // namespace

int alignment_of(const ProductOperands& operands) {
  uintptr_t bits = best_alignment;
  for (const void* address : std::array<const void*, 4>{operands.a, operands.b, operands.bias, operands.out})
    bits |= reinterpret_cast<uintptr_t>(address);
  return static_cast<int>(bits & (~bits + 1));  // the lowest bit that is set
}

bool uses_tf32(at::ScalarType type) {
  return type == at::kFloat && at::globalContext().allowTF32CuBLAS();
}

LtProduct::LtProduct(const Product& product, int alignment, bool tf32)
    : product_(product), alignment_(alignment), library_(library_of_current_device()) {
  describe_operation(tf32);
  describe_layouts();
}

// cuBLASLt computes D = A B on matrices that lie column by column. Memory that holds a row-major matrix holds
// its transpose for cuBLASLt, so that out = op(a) op(b) is asked for as out^T = op(b)^T op(a)^T: its A
// (`left_`) is b, its B (`right_`) is a.
void LtProduct::describe_operation(bool tf32) {
  check_status(cublasLtMatmulDescInit(&operation_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                      CUDA_R_32F),
               "cublasLtMatmulDescInit");
  const cublasOperation_t of_b = product_.layout == ProductLayout::nt ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t of_a = product_.layout == ProductLayout::tn ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSA, of_b);
  set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, of_a);
  if (!product_.bias) return;
  // Of D's rows, which are out's columns. The address comes with each call; what is asked for an algorithm
  // gets one of the same alignment, that nobody reads.
  set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(product_.type));
  set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, uintptr_t{4096} + static_cast<uintptr_t>(alignment_));
}

void LtProduct::describe_layouts() {
  const cudaDataType_t type = data_type(product_.type);
  const auto [m, n, k] = std::array{product_.m, product_.n, product_.k};
  if (product_.layout == ProductLayout::nt) {
    describe(left_, type, k, n, k);
  } else {
    describe(left_, type, n, k, n);
  }
  if (product_.layout == ProductLayout::tn) {
    describe(right_, type, m, k, product_.stride);
  } else {
    describe(right_, type, k, m, product_.stride);
  }
  describe(out_, product_.layout == ProductLayout::tn ? CUDA_R_32F : type, n, m, n);
}

std::vector<LtProduct::Proposal> LtProduct::propose(int most) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_status(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{most_scratch});
  // Neither sums in the result's memory, nor partial sums that are rounded to its type.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE} | uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, attribute, static_cast<uint32_t>(alignment_));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library_, &operation_, &left_, &right_, &out_, &out_, &preference, most, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_status(status, "cublasLtMatmulAlgoGetHeuristic");
  std::vector<Proposal> proposals;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= most_scratch)
      proposals.push_back({.algorithm = result.algo, .workspace = result.workspaceSize});
  }
  return proposals;
}

std::optional<LtProduct::Proposal> LtProduct::check(const Algorithm& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(library_, &operation_, &left_, &right_, &out_, &out_, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > most_scratch) return std::nullopt;
  return Proposal{.algorithm = algorithm, .workspace = result.workspaceSize};
}

// The memory goes back to the allocator at once, which gives it to later work of this stream only.
cublasStatus_t LtProduct::run(const ProductOperands& operands, Existing existing, const Proposal& proposal) {
  if (product_.bias) set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  c10::DataPtr workspace;
  if (proposal.workspace > 0)
    workspace = c10::cuda::CUDACachingAllocator::get()->allocate(proposal.workspace);
  const float one = 1, factor = existing == Existing::added ? 1.0F : 0.0F;
  return cublasLtMatmul(library_, &operation_, &one, operands.b, &left_, operands.a, &right_, &factor,
                        operands.out, &out_, operands.out, &out_, &proposal.algorithm, workspace.get(),
                        proposal.workspace, c10::cuda::getCurrentCUDAStream());
}

}  // namespace pptrain::kernels::cuda

#include "core/kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"

// LibTorch for x86-64 is linked with MKL and exports these; they are null elsewhere. MKL's names: SGEMM is
// BLAS's, with column-major matrices.
extern "C" {
[[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int op_a, int op_b, int m, int n, int k, float alpha,
                                          const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta,
                                          float* c, int ldc);
[[gnu::weak]] void SGEMM(const char* op_a, const char* op_b, const int* m, const int* n, const int* k,
                         const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                         const float* beta, float* c, const int* ldc);
}

namespace pptrain::kernels::cpu {
namespace {

// Sizes of packed blocks: of b 512 KiB, for the second-level cache, and of a 128 KiB.
constexpr int64_t kInner = 512;
constexpr int64_t kColumns = 512;
constexpr int64_t kRows = 10 * kBf16Rows;

// Memory for packed blocks on a cache line's boundary, kept for the next product of the thread.
class PackedBlock {
 public:
  uint32_t* reserve(int64_t rows, int64_t inner, int64_t panel) {
    constexpr size_t kLine = 64;
    const int64_t panels = (rows + panel - 1) / panel;
    const auto bytes = static_cast<size_t>(panels * panel * ((inner + 1) / 2)) * sizeof(uint32_t);
    if (bytes > bytes_) {
      bytes_ = (bytes + kLine - 1) / kLine * kLine;
      data_.reset(static_cast<uint32_t*>(std::aligned_alloc(kLine, bytes_)));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(uint32_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint32_t, Free> data_;
  size_t bytes_ = 0;
};

// op(x) from inner index `inner` and row (column) `other` on. Untransposed, the inner indices of op_a(a) run
// along memory's rows, and those of op_b(b) across them.
Bf16Operand operand(Matrix<const uint16_t> x, bool neighbours, int64_t inner, int64_t other) {
  const int64_t offset = neighbours ? other * x.stride + inner : inner * x.stride + other;
  return {.data = x.data + offset, .stride = x.stride, .pairs_are_neighbours = neighbours};
}

}  // namespace

void packed_gemm(const Bf16Gemm& own, Op op_a, Op op_b, GemmShape s, Matrix<const uint16_t> a,
                 Matrix<const uint16_t> b, float beta, Matrix<float> c) {
  thread_local PackedBlock block_of_a, block_of_b;
  uint32_t* const packed_b = block_of_b.reserve(std::min(s.n, kColumns), std::min(s.k, kInner), kBf16Columns);
  for (int64_t k = 0; k < s.k; k += kInner) {
    const int64_t inner = std::min(kInner, s.k - k), pairs = (inner + 1) / 2;
    const float factor = k == 0 ? beta : 1;
    for (int64_t n = 0; n < s.n; n += kColumns) {
      const int64_t columns = std::min(kColumns, s.n - n);
      own.pack_columns(operand(b, op_b == Op::transpose, k, n), inner, columns, packed_b);
      parallel_for((s.m + kRows - 1) / kRows, 1, [&](int64_t first_block, int64_t last_block) {
        uint32_t* const packed_a = block_of_a.reserve(std::min(s.m, kRows), inner, kBf16Rows);
        for (int64_t m = first_block * kRows; m < std::min(s.m, last_block * kRows); m += kRows) {
          const int64_t rows = std::min(kRows, s.m - m);
          own.pack_rows(operand(a, op_a == Op::none, k, m), inner, rows, packed_a);
          for (int64_t j = 0; j < columns; j += kBf16Columns) {
            for (int64_t i = 0; i < rows; i += kBf16Rows) {
              own.multiply(packed_a + i * pairs, packed_b + j * pairs, pairs, factor,
                           c.data + (m + i) * c.stride + n + j, c.stride, std::min(kBf16Rows, rows - i),
                           std::min(kBf16Columns, columns - j));
            }
          }
        }
      });
    }
  }
}

bool has_gemm() {
  return cblas_gemm_bf16bf16f32 != nullptr && SGEMM != nullptr;
}

bool has_own_bf16_gemm() {
#if defined(__x86_64__)
  static const bool own = loops().bf16_gemm.multiply != nullptr && !__builtin_cpu_is("intel");
  return own;
#else
  return false;
#endif
}

template <>
void gemm(Op op_a, Op op_b, GemmShape s, Matrix<const uint16_t> a, Matrix<const uint16_t> b, float beta,
          Matrix<float> c) {
  if (has_own_bf16_gemm()) return packed_gemm(loops().bf16_gemm, op_a, op_b, s, a, b, beta, c);
  constexpr int kRowMajor = 101;
  cblas_gemm_bf16bf16f32(kRowMajor, static_cast<int>(op_a), static_cast<int>(op_b), static_cast<int>(s.m),
                         static_cast<int>(s.n), static_cast<int>(s.k), 1.0F, a.data,
                         static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), beta, c.data,
                         static_cast<int>(c.stride));
}

// A row-major matrix is the transpose of the column-major one in the same memory: c^T = op_b(b)^T op_a(a)^T.
template <>
void gemm(Op op_a, Op op_b, GemmShape s, Matrix<const float> a, Matrix<const float> b, float beta,
          Matrix<float> c) {
  const auto letter = [](Op op) { return op == Op::none ? "N" : "T"; };
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const int lda = static_cast<int>(a.stride), ldb = static_cast<int>(b.stride),
            ldc = static_cast<int>(c.stride);
  const float alpha = 1;
  SGEMM(letter(op_b), letter(op_a), &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
}

}  // namespace pptrain::kernels::cpu

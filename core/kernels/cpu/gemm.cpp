#include "core/kernels/cpu/gemm.h"

#include <algorithm>
#include <limits>

#include "core/kernels/cpu/buffer.h"
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

// Sizes of packed blocks, in values of 32 bits. A block of a takes a fraction of the second-level cache, in
// which it stays while it meets all columns of a block of b. A block of b takes 2 MiB, read from the third
// level once per block of a.
constexpr int64_t kSteps = 256;  // of a block; twice as many inner indices if a step has two
constexpr int64_t kRows = 144;
constexpr int64_t kSpan = 8 * kSteps;                 // for which b is packed at a time
constexpr int64_t kPackedColumns = int64_t{1} << 19;  // values of b packed at a time
constexpr int64_t kRoundedColumns = 512;  // whose sums stay in the second-level cache until they are rounded

constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return divide_up(a, b) * b;
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

template <class T>
struct Operands {
  Op op_a, op_b;
  Matrix<const T> a, b;

  // Whether inner indices run along memory's rows, not across them.
  bool a_along() const { return op_a == Op::none; }
  bool b_along() const { return op_b == Op::transpose; }
  // From inner index k and row m (column n) on.
  Matrix<const T> rows(int64_t k, int64_t m) const { return operand(a, a_along(), k, m); }
  Matrix<const T> columns(int64_t k, int64_t n) const { return operand(b, b_along(), k, n); }

 private:
  static Matrix<const T> operand(Matrix<const T> x, bool along, int64_t inner, int64_t other) {
    return {x.data + (along ? other * x.stride + inner : inner * x.stride + other), x.stride};
  }
};

// The blocks of one thread's part of a GEMM.
template <class T>
class Blocks {
 public:
  Blocks(const GemmLoops<T>& loops, const Operands<T>& operands, int64_t k)
      : loops_(loops),
        operands_(operands),
        k_(k),
        inner_(kSteps * loops.inner),
        span_(kSpan * loops.inner),
        height_(round_up(kRows, loops.rows)),
        a_panel_(panel(loops.rows)),
        b_panel_(panel(loops.columns)) {}

  int64_t most_rows() const { return height_; }
  // Columns of b that are packed at a time.
  int64_t most_columns() const {
    const int64_t columns = kPackedColumns / steps(std::min(k_, span_));
    return std::max(loops_.columns, columns / loops_.columns * loops_.columns);
  }
  // Whether a block's sums are complete before the next block is begun.
  bool is_whole() const { return k_ <= span_; }

  // Multiplies the blocks of `range` into the memory that sums(block) gives. Calls done(block) when a block's
  // sums are complete.
  template <class Sums, class Done>
  void run(const Range& range, int64_t width, bool add, const Sums& sums, const Done& done) {
    for (int64_t n = 0; n < range.columns; n += width) {
      const int64_t columns = std::min(width, range.columns - n);
      for (int64_t first = 0; first < k_; first += span_) {
        const int64_t last = std::min(k_, first + span_);
        pack_columns(first, last, range.n + n, columns);
        for (int64_t m = 0; m < range.rows; m += height_) {
          const Range block{range.m + m, std::min(height_, range.rows - m), range.n + n, columns};
          multiply(first, last, block, add, sums(block));
          if (last == k_) done(block);
        }
      }
    }
  }

 private:
  int64_t panel(int64_t width) const {
    constexpr int64_t kLine = 16,
                      kOver = 16;  // values of a cache line, and that a panel's last store runs over
    return round_up(kSteps * width + kOver, kLine);
  }
  int64_t steps(int64_t inner) const { return divide_up(inner, loops_.inner); }
  int64_t block_of_columns(int64_t columns) const { return divide_up(columns, loops_.columns) * b_panel_; }

  void pack_columns(int64_t first, int64_t last, int64_t n, int64_t columns) {
    const int64_t size = block_of_columns(columns);
    uint32_t* to = buffers().b.reserve(divide_up(last - first, inner_) * size);
    for (int64_t k = first; k < last; k += inner_, to += size)
      loops_.pack_columns(operands_.columns(k, n), operands_.b_along(), std::min(inner_, last - k), columns,
                          b_panel_, to);
  }

  void multiply(int64_t first, int64_t last, const Range& block, bool add, Matrix<float> sums) {
    uint32_t* const a = buffers().a.reserve(divide_up(block.rows, loops_.rows) * a_panel_);
    const uint32_t* b = buffers().b.reserve(0);
    for (int64_t k = first; k < last; k += inner_, b += block_of_columns(block.columns)) {
      const int64_t inner = std::min(inner_, last - k);
      loops_.pack_rows(operands_.rows(k, block.m), operands_.a_along(), inner, block.rows, a_panel_, a);
      loops_.multiply({.a = a,
                       .b = b,
                       .a_panel = a_panel_,
                       .b_panel = b_panel_,
                       .steps = steps(inner),
                       .add = add || k > 0,
                       .c = sums.data,
                       .stride = sums.stride,
                       .rows = block.rows,
                       .columns = block.columns});
    }
  }

  struct Buffers {
    Buffer<uint32_t> a, b;
  };
  static Buffers& buffers() {
    thread_local Buffers of_this_thread;
    return of_this_thread;
  }

  const GemmLoops<T>& loops_;
  const Operands<T>& operands_;
  int64_t k_, inner_, span_, height_, a_panel_, b_panel_;
};

// Calls body(range) for the cells of a grid over the result, one for each thread. Packing costs each cell its
// rows and its columns, so that cells are as square as they can be.
template <class Body>
void for_cells(GemmShape s, int64_t tile_rows, int64_t tile_columns, const Body& body) {
  constexpr double kPacking = 16;  // products that packing a value costs
  if (s.m == 0 || s.n == 0) return;
  const int64_t count = threads(s.m * s.n * s.k);
  int64_t down = 1, height = s.m, width = s.n;
  double best = std::numeric_limits<double>::max();
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t h = round_up(divide_up(s.m, i), tile_rows),
                  w = round_up(divide_up(s.n, count / i), tile_columns);
    const double cost =
        static_cast<double>(h) * static_cast<double>(w) + kPacking * static_cast<double>(h + w);
    if (cost < best) {
      best = cost;
      down = divide_up(s.m, h);
      height = h;
      width = w;
    }
  }
  parallel_for(down * divide_up(s.n, width), 1, [&](int64_t first, int64_t last) {
    for (int64_t cell = first; cell < last; ++cell) {
      const int64_t m = cell % down * height, n = cell / down * width;
      body(Range{m, std::min(height, s.m - m), n, std::min(width, s.n - n)});
    }
  });
}

bool fits_mkl(GemmShape s) {
  return std::max({s.m, s.n, s.k}) <= std::numeric_limits<int>::max();
}

void mkl_gemm(Op op_a, Op op_b, GemmShape s, Matrix<const uint16_t> a, Matrix<const uint16_t> b, float beta,
              Matrix<float> c) {
  constexpr int kRowMajor = 101;
  cblas_gemm_bf16bf16f32(kRowMajor, static_cast<int>(op_a), static_cast<int>(op_b), static_cast<int>(s.m),
                         static_cast<int>(s.n), static_cast<int>(s.k), 1.0F, a.data,
                         static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), beta, c.data,
                         static_cast<int>(c.stride));
}

// A row-major matrix is the transpose of the column-major one in the same memory: c^T = op_b(b)^T op_a(a)^T.
void mkl_gemm(Op op_a, Op op_b, GemmShape s, Matrix<const float> a, Matrix<const float> b, float beta,
              Matrix<float> c) {
  const auto letter = [](Op op) { return op == Op::none ? "N" : "T"; };
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  const int lda = static_cast<int>(a.stride), ldb = static_cast<int>(b.stride),
            ldc = static_cast<int>(c.stride);
  const float alpha = 1;
  SGEMM(letter(op_b), letter(op_a), &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c.data, &ldc);
}

}  // namespace

bool multiplies_bfloat16() {
  return loops().bf16.gemm.inner == 2;
}

bool has_mkl_bfloat16() {
  return multiplies_bfloat16() && is_intel() && cblas_gemm_bf16bf16f32 != nullptr;
}

template <>
bool has_own_gemm<uint16_t>() {
  return !has_mkl_bfloat16();
}

template <>
bool has_own_gemm<float>() {
  return SGEMM == nullptr || !(is_intel() || multiplies_bfloat16());
}

template <class T>
void packed_gemm(const GemmLoops<T>& loops, Op op_a, Op op_b, GemmShape s, Matrix<const T> a,
                 Matrix<const T> b, Result result, Matrix<float> c) {
  const Operands<T> operands{op_a, op_b, a, b};
  for_cells(s, loops.rows, loops.columns, [&](const Range& cell) {
    Blocks<T> blocks(loops, operands, s.k);
    const auto sums = [&](const Range& x) { return Matrix<float>{c.data + x.m * c.stride + x.n, c.stride}; };
    blocks.run(cell, blocks.most_columns(), result == Result::added, sums, [](const Range&) {});
  });
}

template <class T>
void packed_rounded_gemm(const TypedLoops<T>& loops, Op op_a, Op op_b, GemmShape s, Matrix<const T> a,
                         Matrix<const T> b, Matrix<T> out,
                         c10::function_ref<void(const Range&, float*)> finish) {
  const Operands<T> operands{op_a, op_b, a, b};
  for_cells(s, loops.gemm.rows, loops.gemm.columns, [&](const Range& cell) {
    thread_local Buffer<float> buffer;
    Blocks<T> blocks(loops.gemm, operands, s.k);
    const int64_t width = std::min(blocks.most_columns(), kRoundedColumns);
    const int64_t height = blocks.is_whole() ? blocks.most_rows() : cell.rows;
    float* const memory = buffer.reserve(std::min(height, cell.rows) * std::min(width, cell.columns));
    const auto sums = [&](const Range& x) {
      return Matrix<float>{memory + (blocks.is_whole() ? 0 : (x.m - cell.m) * x.columns), x.columns};
    };
    blocks.run(cell, width, /*add=*/false, sums, [&](const Range& x) {
      float* const from = sums(x).data;
      finish(x, from);
      loops.divide_rows(from, nullptr, {out.data + x.m * out.stride + x.n, out.stride}, x.rows, x.columns);
    });
  });
}

template void packed_gemm(const GemmLoops<float>&, Op, Op, GemmShape, Matrix<const float>,
                          Matrix<const float>, Result, Matrix<float>);
template void packed_gemm(const GemmLoops<uint16_t>&, Op, Op, GemmShape, Matrix<const uint16_t>,
                          Matrix<const uint16_t>, Result, Matrix<float>);
template void packed_rounded_gemm(const TypedLoops<float>&, Op, Op, GemmShape, Matrix<const float>,
                                  Matrix<const float>, Matrix<float>,
                                  c10::function_ref<void(const Range&, float*)>);
template void packed_rounded_gemm(const TypedLoops<uint16_t>&, Op, Op, GemmShape, Matrix<const uint16_t>,
                                  Matrix<const uint16_t>, Matrix<uint16_t>,
                                  c10::function_ref<void(const Range&, float*)>);

template <class T>
void gemm(Op op_a, Op op_b, GemmShape s, Matrix<const T> a, Matrix<const T> b, Result result,
          Matrix<float> c) {
  if (has_own_gemm<T>() || !fits_mkl(s))
    return packed_gemm(typed<T>(loops()).gemm, op_a, op_b, s, a, b, result, c);
  mkl_gemm(op_a, op_b, s, a, b, result == Result::added ? 1.0F : 0.0F, c);
}

template void gemm(Op, Op, GemmShape, Matrix<const float>, Matrix<const float>, Result, Matrix<float>);
template void gemm(Op, Op, GemmShape, Matrix<const uint16_t>, Matrix<const uint16_t>, Result, Matrix<float>);

}  // namespace pptrain::kernels::cpu

#include <algorithm>

#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/buffer.h"
#include "core/kernels/cpu/gemm.h"

namespace pptrain::kernels::cpu::amx {
namespace {

constexpr int64_t kInner = 1024;              // inner indices of a block
constexpr int64_t kRows = 512;                // rows of a block: 1 MiB packed, half of the second-level cache
constexpr int64_t kColumns = 128;             // columns of a block
constexpr int64_t kBlock = int64_t{1} << 19;  // elements of a packed block of columns

int64_t panels(int64_t size) {
  return (size + kPanel - 1) / kPanel;
}

struct Tiles {
  Tiles() { begin(); }
  ~Tiles() { end(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Blocks of equal size, whole steps each.
int64_t block_of(int64_t inner) {
  const int64_t blocks = (inner + kInner - 1) / kInner;
  return steps((inner + blocks - 1) / blocks) * kStep;
}

// A GEMM's weight. Transposed, its inner indices lie along memory's rows.
struct Weight {
  Rows matrix;
  bool along;

  void pack(int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) const {
    (along ? pack_along : pack_across)(matrix, /*columns=*/true, first, size, k, inner, to);
  }
  // The block that pack() would read, to be fetched in so many steps.
  Ahead ahead(int64_t first, int64_t size, int64_t k, int64_t inner, int64_t steps) const {
    if (size <= 0) return {};
    Ahead block{.next = reinterpret_cast<const char*>(along ? matrix[first] + k : matrix[k] + first),
                .stride = matrix.stride * 2,
                .lines = ((along ? inner : size) * 2 + 63) / 64,
                .rows = along ? size : inner};
    block.each = (block.lines * block.rows + steps - 1) / steps;
    return block;
  }
};

// The GEMM of one block of rows. Unless a block of inner indices is the last, its sums stay in memory, [rows,
// n] in whole panels.
class RowBlock {
 public:
  RowBlock(const Rows& x, int64_t first, int64_t rows, int64_t k)
      : x_(x), first_(first), rows_(rows), k_(k) {}

  void multiply_by(const Weight& weight, int64_t n, uint16_t* out) {
    thread_local Buffer<uint16_t> row_memory, column_memory;
    thread_local Buffer<float> sum_memory;
    const int64_t block = block_of(k_), stride = panels(n) * kPanel;
    const bool whole = block >= k_;
    float* const sums = sum_memory.reserve(whole ? kPanel * kPanel : panels(rows_) * kPanel * stride);
    for (int64_t k = 0; k < k_; k += block) {
      const int64_t inner = std::min(block, k_ - k), length = steps(inner) * kStepElements;
      uint16_t* const packed = row_memory.reserve(panels(rows_) * length);
      uint16_t* const columns = column_memory.reserve(kColumns / kPanel * length);
      pack_along(x_, /*columns=*/false, first_, rows_, k, inner, packed);
      for (int64_t first = 0; first < n; first += kColumns) {
        const int64_t width = std::min(kColumns, n - first);
        weight.pack(first, width, k, inner, columns);
        Ahead ahead = weight.ahead(first + width, std::min(kColumns, n - first - width), k, inner,
                                   panels(rows_) * panels(width) * steps(inner));
        for (int64_t i = 0; i < rows_; i += kPanel) {
          for (int64_t j = 0; j < width; j += kPanel) {
            float* const c = whole ? sums : sums + i * stride + first + j;
            const int64_t c_stride = whole ? kPanel : stride;
            multiply(packed + i / kPanel * length, columns + j / kPanel * length, steps(inner), c, c_stride,
                     k > 0, ahead);
            if (k + inner == k_)
              round_to(c, c_stride, out + (first_ + i) * n + first + j, n, std::min(kPanel, rows_ - i),
                       std::min(kPanel, width - j));
          }
        }
      }
    }
  }

 private:
  const Rows& x_;
  int64_t first_, rows_, k_;
};

}  // namespace

void product(const Rows& x, int64_t rows, int64_t k, const uint16_t* weight, Op op, int64_t n,
             uint16_t* out) {
  const Tiles tiles;
  const bool along = op == Op::transpose;
  const Rows matrix{.data = weight, .stride = along ? k : n, .order = nullptr, .each = 1};
  for (int64_t first = 0; first < rows; first += kRows)
    RowBlock(x, first, std::min(kRows, rows - first), k).multiply_by({matrix, along}, n, out);
}

void accumulate_outer(const Rows& dy, const Rows& x, int64_t rows, int64_t m, int64_t n, Result result,
                      float* grad) {
  thread_local Buffer<uint16_t> row_memory, column_memory;
  alignas(64) float edge[kPanel * kPanel];
  const Tiles tiles;
  const int64_t block = block_of(rows);
  const int64_t width = std::max(kPanel, kBlock / block / kPanel * kPanel);  // columns of a block
  for (int64_t k = 0; k < rows; k += block) {
    const int64_t inner = std::min(block, rows - k), length = steps(inner) * kStepElements;
    uint16_t* const packed = row_memory.reserve(panels(m) * length);
    uint16_t* const columns = column_memory.reserve(panels(std::min(width, n)) * length);
    const bool added = k > 0 || result == Result::added;
    pack_across(dy, /*columns=*/false, 0, m, k, inner, packed);
    for (int64_t first = 0; first < n; first += width) {
      const int64_t last = std::min(n, first + width);
      pack_across(x, /*columns=*/true, first, last - first, k, inner, columns);
      for (int64_t i = 0; i < m; i += kPanel) {
        const uint16_t* const a = packed + i / kPanel * length;
        for (int64_t j = first; j < last; j += kPanel) {
          const uint16_t* const b = columns + (j - first) / kPanel * length;
          float* const c = grad + i * n + j;
          const int64_t height = std::min(kPanel, m - i), breadth = std::min(kPanel, n - j);
          if (height == kPanel && breadth == kPanel) {
            // The next panel's sums, of two lines a row.
            Ahead ahead{.next = reinterpret_cast<const char*>(c + kPanel),
                        .stride = n * 4,
                        .lines = 2,
                        .rows = j + 2 * kPanel <= last ? kPanel : 0,
                        .each = (2 * kPanel + steps(inner) - 1) / steps(inner)};
            multiply(a, b, steps(inner), c, n, added, ahead);
          } else {
            Ahead nothing;
            multiply(a, b, steps(inner), edge, kPanel, false, nothing);
            write_to(edge, kPanel, added, c, n, height, breadth);
          }
        }
      }
    }
  }
}

}  // namespace pptrain::kernels::cpu::amx

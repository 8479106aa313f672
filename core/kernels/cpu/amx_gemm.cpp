#include "core/kernels/cpu/amx_gemm.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace pptrain::kernels::cpu::amx {
namespace {

constexpr int64_t kInner = 1024;              // inner indices of a block
constexpr int64_t kRows = 512;                // rows of a block: 1 MiB packed, half of the second-level cache
constexpr int64_t kBlock = int64_t{1} << 19;  // elements of a packed block of columns

int64_t panels(int64_t size) {
  return (size + kPanel - 1) / kPanel;
}

// Memory on a cache line's boundary, kept for the thread's next product.
template <class T>
class Buffer {
 public:
  T* reserve(int64_t elements) {
    constexpr size_t kLine = 64;
    const size_t bytes = (static_cast<size_t>(elements) * sizeof(T) + kLine - 1) / kLine * kLine;
    if (bytes > bytes_) {
      data_.reset(static_cast<T*>(std::aligned_alloc(kLine, bytes)));
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  size_t bytes_ = 0;
};

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

using Pack = void (*)(const Rows&, int64_t, int64_t, int64_t, int64_t, uint16_t*);

// All panels of `size` rows or columns, side by side.
void pack_all(Pack pack, const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  for (int64_t at = 0; at < size; at += kPanel, to += steps(inner) * kStepElements)
    pack(x, first + at, std::min(kPanel, size - at), k, inner, to);
}

// The product of one block of rows. Sums of a block of inner indices that is not the last stay in `sums`,
// [rows, n] in whole panels.
class RowBlock {
 public:
  RowBlock(const Rows& x, int64_t first, int64_t rows, int64_t k)
      : x_(x), first_(first), rows_(rows), k_(k) {}

  void multiply_by(const Rows& weight, Pack pack_weight, int64_t n, uint16_t* out) {
    thread_local Buffer<uint16_t> row_memory, column_memory;
    thread_local Buffer<float> sum_memory;
    const int64_t block = block_of(k_), stride = panels(n) * kPanel;
    const bool whole = block >= k_;
    float* const sums = sum_memory.reserve(whole ? kPanel * kPanel : panels(rows_) * kPanel * stride);
    for (int64_t k = 0; k < k_; k += block) {
      const int64_t inner = std::min(block, k_ - k), length = steps(inner) * kStepElements;
      uint16_t* const packed = row_memory.reserve(panels(rows_) * length);
      uint16_t* const columns = column_memory.reserve(length);
      pack_all(pack_rows_along, x_, first_, rows_, k, inner, packed);
      for (int64_t j = 0; j < n; j += kPanel) {
        const int64_t width = std::min(kPanel, n - j);
        pack_weight(weight, j, width, k, inner, columns);
        for (int64_t i = 0; i < rows_; i += kPanel) {
          float* const c = whole ? sums : sums + i * stride + j;
          const int64_t c_stride = whole ? kPanel : stride;
          multiply(packed + i / kPanel * length, columns, steps(inner), c, c_stride, k > 0, nullptr);
          if (k + inner == k_)
            round_to(c, c_stride, out + (first_ + i) * n + j, n, std::min(kPanel, rows_ - i), width);
        }
      }
    }
  }

 private:
  const Rows& x_;
  int64_t first_, rows_, k_;
};

}  // namespace

void product(const Rows& x, int64_t rows, int64_t k, const uint16_t* weight, Inner inner, int64_t n,
             uint16_t* out) {
  const Tiles tiles;
  const bool along = inner == Inner::along;
  const Rows matrix{.data = weight, .stride = along ? k : n, .order = nullptr, .each = 1};
  for (int64_t first = 0; first < rows; first += kRows)
    RowBlock(x, first, std::min(kRows, rows - first), k)
        .multiply_by(matrix, along ? pack_columns_along : pack_columns_across, n, out);
}

void accumulate_outer(const Rows& dy, const Rows& x, int64_t rows, int64_t m, int64_t n, float* grad) {
  thread_local Buffer<uint16_t> row_memory, column_memory;
  alignas(64) float edge[kPanel * kPanel];
  const Tiles tiles;
  const int64_t block = block_of(rows);
  const int64_t width = std::max(kPanel, kBlock / block / kPanel * kPanel);  // columns of a block
  for (int64_t k = 0; k < rows; k += block) {
    const int64_t inner = std::min(block, rows - k), length = steps(inner) * kStepElements;
    uint16_t* const packed = row_memory.reserve(panels(m) * length);
    uint16_t* const columns = column_memory.reserve(panels(std::min(width, n)) * length);
    pack_all(pack_rows_across, dy, 0, m, k, inner, packed);
    for (int64_t first = 0; first < n; first += width) {
      const int64_t last = std::min(n, first + width);
      pack_all(pack_columns_across, x, first, last - first, k, inner, columns);
      for (int64_t i = 0; i < m; i += kPanel) {
        const uint16_t* const a = packed + i / kPanel * length;
        for (int64_t j = first; j < last; j += kPanel) {
          const uint16_t* const b = columns + (j - first) / kPanel * length;
          float* const c = grad + i * n + j;
          const int64_t height = std::min(kPanel, m - i), breadth = std::min(kPanel, n - j);
          if (height == kPanel && breadth == kPanel) {
            multiply(a, b, steps(inner), c, n, true, j + 2 * kPanel <= last ? c + kPanel : nullptr);
          } else {
            multiply(a, b, steps(inner), edge, kPanel, false, nullptr);
            add_to(edge, kPanel, c, n, height, breadth);
          }
        }
      }
    }
  }
}

}  // namespace pptrain::kernels::cpu::amx

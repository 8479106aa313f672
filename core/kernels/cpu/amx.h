// GEMMs of bfloat16 on tile registers (Intel AMX): packing into tiles, and the product of two packed panels.
// Plain functions over raw pointers, without threads or tensors; absent if the build or the processor lacks
// AMX.
//
// A panel has kPanel rows of the first operand, or columns of the second, over `steps` steps of kStep inner
// indices: for each step its two tiles, of 1 KiB each. A tile of the first operand is 16 rows of 32 inner
// indices; one of the second is 16 pairs of inner indices, each with the 16 columns' two values side by side.
// What lies beyond the matrix is zero.
#pragma once

#include <cstdint>

namespace pptrain::kernels::cpu::amx {

constexpr int64_t kPanel = 32;
constexpr int64_t kStep = 32;
constexpr int64_t kStepElements = kPanel * kStep;  // that a panel takes for a step

constexpr int64_t steps(int64_t inner) {
  return (inner + kStep - 1) / kStep;
}

// Whether the processor has AMX for bfloat16 and the operating system lets this process use it.
bool is_supported();

// Tile registers are configured between these two, on each thread that multiplies.
void begin();
void end();

// Rows of a matrix: row r begins at data + stride * (order[r] / each), or without an order at data + stride
// r.
struct Rows {
  const uint16_t* data;
  int64_t stride;
  const int32_t* order;  // may be null
  int64_t each;
  const uint16_t* operator[](int64_t r) const {
    return data + stride * (order == nullptr ? r : order[r] / each);
  }
};

// All panels of `size` rows of a first operand (`columns` of a second), one after the other, with `inner`
// inner indices, from the row (column) `first` and the inner index `k`. Inner indices run along memory's
// rows, or across them.
void pack_along(const Rows& x, bool columns, int64_t first, int64_t size, int64_t k, int64_t inner,
                uint16_t* to);
void pack_across(const Rows& x, bool columns, int64_t first, int64_t size, int64_t k, int64_t inner,
                 uint16_t* to);

// Memory that is wanted soon: `lines` cache lines of each of `rows` rows. GEMMs prefetch it while they run.
struct Ahead {
  const char* next = nullptr;
  int64_t stride = 0;  // bytes
  int64_t lines = 0, rows = 0;
  int64_t each = 0;  // lines in a step
  int64_t line = 0;  // of the current row
};

// c [kPanel, kPanel] = the panels' product, plus c if `add`. Rows of c are `stride` elements apart.
void multiply(const uint16_t* a, const uint16_t* b, int64_t steps, float* c, int64_t stride, bool add,
              Ahead& ahead);

// out [rows, columns] = c rounded, and out = c, or out += c if `add`.
void round_to(const float* c, int64_t c_stride, uint16_t* out, int64_t out_stride, int64_t rows,
              int64_t columns);
void write_to(const float* c, int64_t c_stride, bool add, float* out, int64_t out_stride, int64_t rows,
              int64_t columns);

}  // namespace pptrain::kernels::cpu::amx

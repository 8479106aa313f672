#include "core/kernels/cpu/amx.h"

// Nothing of a library's templates may be used here: the linker would merge their copies, compiled for this
// instruction set, with others.
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pptrain::kernels::cpu::amx {
namespace {

constexpr int64_t kTile = 16;                     // rows of a tile
constexpr int64_t kTileElements = kTile * kStep;  // 1 KiB
constexpr int64_t kTileBytes = 64;                // of a tile's row

bool processor_has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTiles) != 0 &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

// Linux gives tiles' state to those who ask.
bool system_permits_tiles() {
#if defined(SYS_arch_prctl)
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// The transpose of 16 x 16 values of 32 bits.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // u[i + j]: of each 128-bit lane l, column 4 l + j of rows i to i + 3
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i even_low = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
    r[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    r[4 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    r[12 + j] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

inline int64_t clamp(int64_t value, int64_t high) {
  return value < 0 ? 0 : value > high ? high : value;
}

// 32 values of a row, of which `valid` exist.
inline __m512i load_row(const uint16_t* from, int64_t valid) {
  const auto mask = static_cast<__mmask32>(valid >= kStep ? ~0u : (1u << valid) - 1);
  return _mm512_maskz_loadu_epi16(mask, from);
}

// 16 values of two rows, side by side: 16 pairs.
inline __m512i load_pairs(const uint16_t* low, const uint16_t* high, __mmask16 mask) {
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, low));
  if (high == nullptr) return first;
  const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, high));
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

// 16 rows of 32 inner indices, from row `first`.
inline void load_along(const Rows& x, int64_t first, int64_t valid, int64_t k, int64_t inner,
                       __m512i (&r)[16]) {
  for (int i = 0; i < 16; ++i) r[i] = i < valid ? load_row(x[first + i] + k, inner) : _mm512_setzero_si512();
}

// 16 pairs of inner indices of 16 columns, from column `first`.
inline void load_across(const Rows& x, int64_t first, int64_t valid, int64_t k, int64_t inner,
                        __m512i (&r)[16]) {
  const auto mask = static_cast<__mmask16>(valid >= 16 ? 0xffff : (1u << valid) - 1);
  for (int i = 0; i < 16; ++i) {
    const int64_t at = 2 * i;
    r[i] = at >= inner
               ? _mm512_setzero_si512()
               : load_pairs(x[k + at] + first, at + 1 < inner ? x[k + at + 1] + first : nullptr, mask);
  }
}

inline void store_tile(const __m512i (&r)[16], uint16_t* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kStep, r[i]);
}

template <bool kAcross, bool kTransposed>
inline void pack(const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  for (int64_t at = 0; at < inner; at += kStep) {
    for (int64_t half = 0; half < kPanel; half += kTile, to += kTileElements) {
      __m512i r[16];
      const int64_t valid = clamp(size - half, kTile), left = clamp(inner - at, kStep);
      if constexpr (kAcross) {
        load_across(x, first + half, valid, k + at, left, r);
      } else {
        load_along(x, first + half, valid, k + at, left, r);
      }
      if constexpr (kTransposed) transpose(r);
      store_tile(r, to);
    }
  }
}

}  // namespace

bool is_supported() {
  static const bool supported = processor_has_amx() && system_permits_tiles();
  return supported;
}

void begin() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = kTileBytes;
    config.rows[i] = kTile;
  }
  _tile_loadconfig(&config);
}

void end() {
  _tile_release();
}

void pack_rows_along(const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  pack<false, false>(x, first, size, k, inner, to);
}
void pack_rows_across(const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  pack<true, true>(x, first, size, k, inner, to);
}
void pack_columns_along(const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  pack<false, true>(x, first, size, k, inner, to);
}
void pack_columns_across(const Rows& x, int64_t first, int64_t size, int64_t k, int64_t inner, uint16_t* to) {
  pack<true, false>(x, first, size, k, inner, to);
}

void multiply(const uint16_t* a, const uint16_t* b, int64_t steps, float* c, int64_t stride, bool add,
              const float* next) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  if (add) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + kTile, bytes);
    _tile_loadd(2, c + kTile * stride, bytes);
    _tile_loadd(3, c + kTile * stride + kTile, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  // Each step fetches its share of the next c's rows, of two cache lines each.
  const int64_t each = next == nullptr ? 0 : (kPanel + steps - 1) / steps;
  int64_t row = 0;
  for (int64_t step = 0; step < steps; ++step, a += kStepElements, b += kStepElements) {
    _tile_loadd(4, a, kTileBytes);
    _tile_loadd(6, b, kTileBytes);
    _tile_loadd(7, b + kTileElements, kTileBytes);
    _tile_loadd(5, a + kTileElements, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    for (int64_t i = 0; i < each && row < kPanel; ++i, ++row) {
      _mm_prefetch(next + row * stride, _MM_HINT_T0);
      _mm_prefetch(next + row * stride + kTile, _MM_HINT_T0);
    }
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kTile, bytes);
  _tile_stored(2, c + kTile * stride, bytes);
  _tile_stored(3, c + kTile * stride + kTile, bytes);
}

void round_to(const float* c, int64_t c_stride, uint16_t* out, int64_t out_stride, int64_t rows,
              int64_t columns) {
  const auto mask = static_cast<__mmask32>(columns >= kPanel ? ~0u : (1u << columns) - 1);
  for (int64_t row = 0; row < rows; ++row) {
    const __m512 low = _mm512_loadu_ps(c + row * c_stride);
    const __m512 high = _mm512_loadu_ps(c + row * c_stride + kTile);
    _mm512_mask_storeu_epi16(out + row * out_stride, mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

void add_to(const float* c, int64_t c_stride, float* out, int64_t out_stride, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) out[row * out_stride + i] += c[row * c_stride + i];
  }
}

}  // namespace pptrain::kernels::cpu::amx

#else

namespace pptrain::kernels::cpu::amx {

bool is_supported() {
  return false;
}
void begin() {}
void end() {}
void pack_rows_along(const Rows&, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void pack_rows_across(const Rows&, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void pack_columns_along(const Rows&, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void pack_columns_across(const Rows&, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void multiply(const uint16_t*, const uint16_t*, int64_t, float*, int64_t, bool, const float*) {}
void round_to(const float*, int64_t, uint16_t*, int64_t, int64_t, int64_t) {}
void add_to(const float*, int64_t, float*, int64_t, int64_t, int64_t) {}

}  // namespace pptrain::kernels::cpu::amx

#endif

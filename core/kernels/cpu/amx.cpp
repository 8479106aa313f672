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

// Linux gives a process the state of tiles on request.
bool system_permits_tiles() {
#if defined(SYS_arch_prctl)
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
// In memory, since the compiler believes that the instruction reads 8 bytes of it.
const TileConfig eight_whole_tiles = {.palette = 1,
                                      .start_row = 0,
                                      .reserved = {},
                                      .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                      .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

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

inline void store_tile(__m512i (&r)[16], bool transposed, uint16_t* to) {
  if (transposed) transpose(r);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kStep, r[i]);
}

}  // namespace

bool is_supported() {
  static const bool supported = processor_has_amx() && system_permits_tiles();
  return supported;
}

void begin() {
  _tile_loadconfig(&eight_whole_tiles);
}

void end() {
  _mm_sfence();  // of what went past the caches
  _tile_release();
}

// Packs panels whose rows lie in memory as they are needed. The rows of the next panel are fetched meanwhile.
void pack_along(const Rows& x, bool columns, int64_t first, int64_t size, int64_t k, int64_t inner,
                uint16_t* to) {
  for (int64_t row = 0; row < size; row += kPanel) {
    for (int64_t at = 0; at < inner; at += kStep) {
      for (int64_t half = row; half < row + kPanel; half += kTile, to += kTileElements) {
        const int64_t valid = clamp(size - half, kTile), left = clamp(inner - at, kStep);
        const int64_t next = clamp(size - half - kPanel, kTile);
        __m512i r[16];
        for (int i = 0; i < 16; ++i)
          r[i] = i < valid ? load_row(x[first + half + i] + k + at, left) : _mm512_setzero_si512();
        for (int i = 0; i < next; ++i) _mm_prefetch(x[first + half + kPanel + i] + k + at, _MM_HINT_T0);
        store_tile(r, columns, to);
      }
    }
  }
}

// Packs panels whose inner indices lie in memory's rows: these are read to their ends, through all panels.
void pack_across(const Rows& x, bool columns, int64_t first, int64_t size, int64_t k, int64_t inner,
                 uint16_t* to) {
  const int64_t panel = steps(inner) * kStepElements;
  for (int64_t at = 0; at < inner; at += kStep, to += kStepElements) {
    const uint16_t* rows[kStep];
    for (int64_t i = 0; i < kStep; ++i) rows[i] = at + i < inner ? x[k + at + i] + first : nullptr;
    for (int64_t half = 0; half < (size + kPanel - 1) / kPanel * kPanel; half += kTile) {
      const int64_t valid = clamp(size - half, kTile);
      const auto mask = static_cast<__mmask16>((1u << valid) - 1);
      __m512i r[16];
      for (int i = 0; i < 16; ++i) {
        r[i] = rows[2 * i] == nullptr
                   ? _mm512_setzero_si512()
                   : load_pairs(rows[2 * i] + half,
                                rows[2 * i + 1] == nullptr ? nullptr : rows[2 * i + 1] + half, mask);
      }
      store_tile(r, !columns, to + half / kPanel * panel + half % kPanel * kStep);
    }
  }
}

void multiply(const uint16_t* a, const uint16_t* b, int64_t steps, float* c, int64_t stride, bool add,
              Ahead& ahead) {
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
  Ahead next = ahead;
  for (int64_t step = 0; step < steps; ++step, a += kStepElements, b += kStepElements) {
    _tile_loadd(4, a, kTileBytes);
    _tile_loadd(6, b, kTileBytes);
    _tile_loadd(7, b + kTileElements, kTileBytes);
    _tile_loadd(5, a + kTileElements, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    for (int64_t i = 0; i < next.each && next.rows > 0; ++i) {
      _mm_prefetch(next.next + next.line * 64, _MM_HINT_T1);
      if (++next.line < next.lines) continue;
      next.line = 0;
      next.next += next.stride;
      --next.rows;
    }
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  ahead = next;
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + kTile, bytes);
  _tile_stored(2, c + kTile * stride, bytes);
  _tile_stored(3, c + kTile * stride + kTile, bytes);
}

// A whole line goes past the caches: the next kernel reads it when all of them are written.
void round_to(const float* c, int64_t c_stride, uint16_t* out, int64_t out_stride, int64_t rows,
              int64_t columns) {
  const bool lines =
      columns >= kPanel && out_stride % kStep == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0;
  const auto mask = static_cast<__mmask32>(columns >= kPanel ? ~0u : (1u << columns) - 1);
  for (int64_t row = 0; row < rows; ++row) {
    const __m512 low = _mm512_loadu_ps(c + row * c_stride);
    const __m512 high = _mm512_loadu_ps(c + row * c_stride + kTile);
    const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    if (lines) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out + row * out_stride), rounded);
    } else {
      _mm512_mask_storeu_epi16(out + row * out_stride, mask, rounded);
    }
  }
}

void write_to(const float* c, int64_t c_stride, bool add, float* out, int64_t out_stride, int64_t rows,
              int64_t columns) {
  for (int64_t row = 0; row < rows; ++row, c += c_stride, out += out_stride) {
    for (int64_t i = 0; i < columns; ++i) out[i] = add ? out[i] + c[i] : c[i];
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
void pack_along(const Rows&, bool, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void pack_across(const Rows&, bool, int64_t, int64_t, int64_t, int64_t, uint16_t*) {}
void multiply(const uint16_t*, const uint16_t*, int64_t, float*, int64_t, bool, Ahead&) {}
void round_to(const float*, int64_t, uint16_t*, int64_t, int64_t, int64_t) {}
void write_to(const float*, int64_t, bool, float*, int64_t, int64_t, int64_t) {}

}  // namespace pptrain::kernels::cpu::amx

#endif

// Standard normal values as a function of a key and an index, with equal bits from every compiler and
// processor: nothing but products, sums, quotients and square roots that IEEE 754 rounds one way. A compiler
// may not fuse a product with a sum here: on a GPU the operations below forbid it, and a host file that
// includes this is compiled with -ffp-contract=off.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/kernels/host_device.h"

namespace pptrain::kernels::normal_value {

// --- Operations that round each result by itself ---

PPTRAIN_HOST_DEVICE inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

PPTRAIN_HOST_DEVICE inline double sum(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

PPTRAIN_HOST_DEVICE inline double quotient(double a, double b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

PPTRAIN_HOST_DEVICE inline double square_root(double a) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(a);
#else
  return std::sqrt(a);
#endif
}

// c[0] + c[1] x + ... + c[N - 1] x^(N - 1), by Horner's rule.
template <int N>
PPTRAIN_HOST_DEVICE inline double polynomial(const double (&c)[N], double x) {
  double y = c[N - 1];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = N - 2; i >= 0; --i) {
    y = sum(product(y, x), c[i]);
  }
  return y;
}

// --- Random bits ---

struct Words {
  uint32_t v[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
PPTRAIN_HOST_DEVICE inline Words philox(Words counter, uint32_t key_low, uint32_t key_high) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57U;
  constexpr uint32_t kGoldenRatio = 0x9E3779B9U;
  constexpr uint32_t kRootOf3 = 0xBB67AE85U;
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = static_cast<uint64_t>(kMultiplier0) * counter.v[0];
    const uint64_t second = static_cast<uint64_t>(kMultiplier1) * counter.v[2];
    counter = {{static_cast<uint32_t>(second >> 32) ^ counter.v[1] ^ key_low, static_cast<uint32_t>(second),
                static_cast<uint32_t>(first >> 32) ^ counter.v[3] ^ key_high, static_cast<uint32_t>(first)}};
    key_low += kGoldenRatio;
    key_high += kRootOf3;
  }
  return counter;
}

// --- The inverse of the normal distribution ---

// The natural logarithm of a normal number x > 0, within one unit in the last place. The method of fdlibm's
// log (Sun Microsystems, 1993): x = 2^k (1 + f) with sqrt(1/2) < 1 + f < sqrt(2), and log(1 + f) as an odd
// polynomial in f / (2 + f).
PPTRAIN_HOST_DEVICE inline double log(double x) {
  constexpr double kLn2High = 6.93147180369123816490e-01;  // its last bits are zero: k kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kSeries[] = {6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                                2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                                1.479819860511658591e-01};
  constexpr uint64_t kOne = uint64_t{0x3FF} << 52;         // the bits of 1
  constexpr uint64_t kRootOfHalf = 0x3FE6A09E667F3BCDULL;  // of sqrt(1/2)
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  const uint64_t shifted = bits + (kOne - kRootOfHalf);
  const int k = static_cast<int>(shifted >> 52) - 0x3FF;
  bits = (shifted & 0x000FFFFFFFFFFFFFULL) + kRootOfHalf;
  double significand = 0;
  std::memcpy(&significand, &bits, sizeof significand);
  const double f = sum(significand, -1.0);
  const double s = quotient(f, sum(2.0, f));
  const double z = product(s, s);
  const double half_square = product(0.5, product(f, f));
  const double rest = product(s, sum(half_square, product(z, polynomial(kSeries, z))));
  const double power = k;
  const double small = sum(rest, product(power, kLn2Low));
  return sum(product(power, kLn2High), sum(f, -sum(half_square, -small)));
}

// The z that a standard normal variable stays below with probability p, for p in [2^-33, 1 - 2^-33]. PPND16
// of Wichura's algorithm AS 241 (Applied Statistics 37, 1988), good to about 1e-16; its third region, p <
// e^-25, lies outside.
PPTRAIN_HOST_DEVICE inline double quantile(double p) {
  constexpr double kA[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                           1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                           3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr double kB[] = {1.0,
                           4.2313330701600911252e1,
                           6.8718700749205790830e2,
                           5.3941960214247511077e3,
                           2.1213794301586595867e4,
                           3.9307895800092710610e4,
                           2.8729085735721942674e4,
                           5.2264952788528545610e3};
  constexpr double kC[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                           3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr double kD[] = {1.0,
                           2.05319162663775882187e0,
                           1.67638483018380384940e0,
                           6.89767334985100004550e-1,
                           1.48103976427480074590e-1,
                           1.51986665636164571966e-2,
                           5.47593808499534494600e-4,
                           1.05075007164441684324e-9};
  const double q = sum(p, -0.5);
  if (q >= -0.425 && q <= 0.425) {
    const double r = sum(0.180625, -product(q, q));
    return quotient(product(q, polynomial(kA, r)), polynomial(kB, r));
  }
  const double tail = q < 0 ? p : sum(1.0, -p);
  const double r = sum(square_root(-log(tail)), -1.6);
  const double z = quotient(polynomial(kC, r), polynomial(kD, r));
  return q < 0 ? -z : z;
}

// --- What the kernels write ---

// The standard normal value of 32 random bits.
PPTRAIN_HOST_DEVICE inline double standard_normal(uint32_t bits) {
  constexpr double kUnit = 1.0 / 4294967296.0;  // 2^-32: the middle of each of 2^32 intervals, exactly
  return quantile(product(sum(static_cast<double>(bits), 0.5), kUnit));
}

// As the kernel stores it: scaled, and rounded once to float32.
PPTRAIN_HOST_DEVICE inline float scaled(double normal, double std) {
  return static_cast<float>(product(std, normal));
}

// A slice of `size` values from index `first` on touches counters [first / 4, first / 4 + blocks), each of
// which makes four values; the outermost values may lie outside the slice.
constexpr int64_t kBlock = 4;
PPTRAIN_HOST_DEVICE inline int64_t blocks_of(int64_t first, int64_t size) {
  return (first % kBlock + size + kBlock - 1) / kBlock;
}

// Writes block `block` of the slice: only its values that belong to the slice. A counter's four words make
// the key's standard normal values 4 counter .. 4 counter + 3.
PPTRAIN_HOST_DEVICE inline void write_block(float* out, int64_t size, uint64_t key, int64_t first, double std,
                                            int64_t block) {
  const auto counter = static_cast<uint64_t>(first / kBlock + block);
  const Words bits = philox({{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0}},
                            static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  const int64_t begin = block * kBlock - first % kBlock;  // of the first value, in `out`
  for (int i = 0; i < 4; ++i) {
    if (begin + i >= 0 && begin + i < size) {
      out[begin + i] = scaled(standard_normal(bits.v[i]), std);
    }
  }
}

}  // namespace pptrain::kernels::normal_value

// The roofline of one core: its peak rates of float32 operations, and of bytes to and from memory.
// where_a_step_goes.py compiles and runs it: c++ -O3 -march=native. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16, sums = 24;
#elif defined(__AVX__)
constexpr int lanes = 8, sums = 12;
#else
constexpr int lanes = 4, sums = 12;
#endif
typedef float Vec __attribute__((vector_size(lanes * 4)));

// The compiler must assume that the value is read.
void keep(const void* data) {
  asm volatile("" : : "r"(data) : "memory");
}

template <typename Work>
double best_seconds(int times, const Work& work) {
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Enough independent sums to hide the latency of a fused multiply-add, few enough for the registers.
double multiply_adds() {
  constexpr long rounds = 4'000'000;
  std::vector<Vec> results(sums);
  const double seconds = best_seconds(10, [&] {
    keep(results.data());  // otherwise the compiler sees that all sums are equal
    Vec sum[sums];
    std::copy_n(results.data(), sums, sum);
    const Vec factor = Vec{} + 0.999f, term = Vec{} + 0.001f;
    for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
      for (int k = 0; k < sums; ++k) sum[k] = sum[k] * factor + term;  // becomes one FMA
    }
    std::copy_n(sum, sums, results.data());
  });
  keep(results.data());
  return 2.0 * lanes * sums * rounds / seconds;
}

}  // namespace

int main() {
  const size_t size = size_t{48} << 20;  // floats; larger than the caches
  std::vector<float> x(size, 1), y(size, 2), z(size, 3);
  const double bytes = size * sizeof(float);
  const double copy = best_seconds(5, [&] { std::memcpy(y.data(), x.data(), size * sizeof(float)); });
  const double add = best_seconds(5, [&] {  // y += a x: two read, one written
    for (size_t i = 0; i < size; ++i) y[i] += 0.5f * x[i];
  });
  std::printf("{\"flops\": %.4g, \"copy_bytes\": %.4g, \"add_bytes\": %.4g, \"check\": %g}\n",
              multiply_adds(), 2 * bytes / copy, 3 * bytes / add, static_cast<double>(y[size / 2]));
}

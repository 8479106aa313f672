#include "core/kernels/cpu/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace pptrain::kernels::cpu {
namespace {

// OpenMP orders the call before every range, and every range before the return, by means that ThreadSanitizer
// does not see; this tells it.
class RegionOrder {
 public:
#ifdef __SANITIZE_THREAD__
  void acquire() {
    __tsan_acquire(this);
  }
  void release() {
    __tsan_release(this);
  }
#else
  void acquire() {}
  void release() {}
#endif
};

}  // namespace

void parallel_for(int64_t size, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body) {
  if (size <= grain || at::get_num_threads() == 1) {
    if (size > 0) body(0, size);
    return;
  }
  RegionOrder order;
  order.release();
  at::parallel_for(0, size, grain, [&](int64_t first, int64_t last) {
    order.acquire();
    body(first, last);
    order.release();
  });
  order.acquire();
}

int64_t threads(int64_t operations) {
  constexpr int64_t kWorthwhile = int64_t{1} << 18;  // some 5 microseconds of one thread
  if (at::in_parallel_region()) return 1;
  return std::clamp<int64_t>(operations / kWorthwhile, 1, at::get_num_threads());
}

int64_t row_grain(int64_t width) {
  constexpr int64_t kElements = int64_t{1} << 15;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(width, 1));
}

void blocked_sum(int64_t size, int64_t width, float* out,
                 c10::function_ref<void(float*, int64_t, int64_t)> body) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (size + kBlock - 1) / kBlock;
  std::vector<float> sums(static_cast<size_t>(blocks * width));
  parallel_for(blocks, std::max<int64_t>(1, row_grain(width) / kBlock), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      body(sums.data() + block * width, block * kBlock, std::min(size, (block + 1) * kBlock));
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    const float* sum = sums.data() + block * width;
    for (int64_t i = 0; i < width; ++i) {
      out[i] += sum[i];
    }
  }
}

}  // namespace pptrain::kernels::cpu

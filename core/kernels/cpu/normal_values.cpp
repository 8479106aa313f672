// Compiled with -ffp-contract=off, as normal_value.h asks.
#include "core/kernels/normal_value.h"

#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {

void normal_values(Tensor& result, uint64_t key, int64_t first, double std) {
  constexpr int64_t kGrain = 1024;  // blocks, some 80 microseconds
  const int64_t size = result.numel();
  float* const to = out<float>(result);
  parallel_for(normal_value::blocks_of(first, size), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      normal_value::write_block(to, size, key, first, std, block);
    }
  });
}

void add_normal_kernels() {
  kernels::normal_values.implement(BackEnd::cpu, normal_values);
}

}  // namespace pptrain::kernels::cpu

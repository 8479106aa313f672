#include "test/gpu/bench/host_waits.h"

namespace pptrain::bench {

std::optional<int64_t> count_host_waits(const std::function<void()>& work) {
  work();
  return std::nullopt;
}

}  // namespace pptrain::bench

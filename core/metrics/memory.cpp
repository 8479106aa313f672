#include "core/metrics/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

namespace pptrain::metrics {

int64_t peak_memory_bytes(c10::Device device) {
  if (!device.is_cpu()) {
    using Statistic = c10::CachingAllocator::StatType;
    const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return stats.allocated_bytes[static_cast<size_t>(Statistic::AGGREGATE)].peak;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace pptrain::metrics

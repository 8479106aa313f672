#include "core/metrics/memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

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

int64_t resident_memory_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;  // in pages
  return file >> size >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace pptrain::metrics

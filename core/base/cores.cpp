#include "core/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/base/control_groups.h"

namespace pptrain {
namespace {

namespace fs = std::filesystem;

// Processors of the calling thread; empty if the system does not tell.
std::vector<int> own_processors() {
  std::vector<int> processors;
  for (int most = CPU_SETSIZE; processors.empty() && most <= 1 << 20; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    if (set == nullptr) break;
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const bool too_small = !known && errno == EINVAL;  // this host may have more
    for (int i = 0; known && i < most; ++i) {
      if (CPU_ISSET_S(static_cast<size_t>(i), bytes, set)) processors.push_back(i);
    }
    CPU_FREE(set);
    if (!too_small) break;
  }
  return processors;
}

// Version 2: "max 100000" or "150000 100000", microseconds of processor time in each period.
std::optional<double> quota_of_version_2(const fs::path& folder) {
  double quota = 0, period = 0;
  return std::ifstream(folder / "cpu.max") >> quota >> period && period > 0 ? std::optional(quota / period)
                                                                            : std::nullopt;
}

// Version 1: -1 for no quota.
std::optional<double> quota_of_version_1(const fs::path& folder) {
  double quota = 0, period = 0;
  const bool known = std::ifstream(folder / "cpu.cfs_quota_us") >> quota &&
                     std::ifstream(folder / "cpu.cfs_period_us") >> period;
  return known && quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

}  // namespace

int64_t Cores::count() const {
  const auto processor_count = static_cast<double>(processors.size());
  return std::max<int64_t>(1, static_cast<int64_t>(std::floor(std::min(processor_count, quota))));
}

Cores process_cores(const fs::path& root) {
  Cores cores{.processors = own_processors(), .of_host = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))};
  for (int i = 0; cores.processors.empty() && i < cores.of_host; ++i) cores.processors.push_back(i);
  for_control_groups(root, "cpu", [&](const fs::path& folder, GroupVersion version) {
    const std::optional<double> quota =
        version == GroupVersion::v2 ? quota_of_version_2(folder) : quota_of_version_1(folder);
    if (!quota || *quota >= cores.quota) return;
    cores.quota = *quota;
    cores.group = folder.string();
  });
  return cores;
}

int64_t core_count() {
  return process_cores().count();
}

std::vector<int> processors_near(const std::string& pci_device, const fs::path& root) {
  std::vector<int> processors;
  std::ifstream list(root / "sys/bus/pci/devices" / pci_device / "local_cpulist");  // "0-27,56-83"
  for (std::string range; std::getline(list, range, ',');) {
    std::istringstream text(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(text >> first)) return {};
    if (!(text >> dash)) last = first;
    if (dash != 0 && !(text >> last)) return {};
    for (int processor = first; processor <= last; ++processor) processors.push_back(processor);
  }
  return processors;
}

bool bind_unless_bound(const std::vector<int>& processors) {
  const Cores own = process_cores();
  if (std::ssize(own.processors) < own.of_host) return false;
  std::vector<int> both;
  std::ranges::set_intersection(own.processors, processors, std::back_inserter(both));
  if (both.empty()) return false;
  const int most = both.back() + 1;
  cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(most));
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
  CPU_ZERO_S(bytes, set);
  for (const int processor : both) CPU_SET_S(static_cast<size_t>(processor), bytes, set);
  const bool bound = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return bound;
}

}  // namespace pptrain

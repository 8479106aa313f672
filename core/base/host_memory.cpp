#include "core/base/host_memory.h"

#if defined(__GLIBC__) || __has_include(<malloc.h>)
#include <malloc.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <limits>
#include <string_view>

#include "core/base/control_groups.h"

namespace pptrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();

// The names of a control group's files, of version 2 and of version 1.
struct GroupFiles {
  const char *limit, *usage, *inactive, *active;
};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                               "total_active_file"};

std::optional<int64_t> number_in(const fs::path& file) {
  int64_t number = 0;
  return std::ifstream(file) >> number ? std::optional(number) : std::nullopt;
}

// The number behind a name: "inactive_file 4096", "MemAvailable:   23 kB".
std::optional<int64_t> number_after(const fs::path& file, std::string_view name) {
  std::ifstream lines(file);
  std::string word;
  for (int64_t number = 0; lines >> word; lines.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (word == name && lines >> number) return number;
    lines.clear();
  }
  return std::nullopt;
}

// Calls f(folder, files) for this process's memory groups and all that hold them.
template <class F>
void for_groups(const fs::path& root, F f) {
  for_control_groups(root, "memory", [&](const fs::path& folder, GroupVersion version) {
    f(folder, version == GroupVersion::v2 ? version_2 : version_1);
  });
}

int64_t memory_of_host() {
  const int64_t pages = std::max(sysconf(_SC_PHYS_PAGES), 1L);
  return pages * std::max(sysconf(_SC_PAGESIZE), 4096L);
}

}  // namespace

int64_t memory_limit(const fs::path& root) {
  int64_t least = memory_of_host();
  for_groups(root, [&](const fs::path& folder, const GroupFiles& names) {
    least = std::min(least, number_in(folder / names.limit).value_or(no_limit));
  });
  return least;
}

std::optional<int64_t> available_memory(const fs::path& root) {
  const std::optional<int64_t> host = number_after(root / "proc/meminfo", "MemAvailable:");
  int64_t least = host ? *host * 1024 : no_limit;
  for_groups(root, [&](const fs::path& folder, const GroupFiles& names) {
    const auto limit = number_in(folder / names.limit), usage = number_in(folder / names.usage);
    if (!limit || !usage) return;
    const fs::path statistics = folder / "memory.stat";
    const int64_t cached = number_after(statistics, names.inactive).value_or(0) +
                           number_after(statistics, names.active).value_or(0);
    // Version 1 writes a limit near 2^63 for none.
    if (*limit < no_limit / 2) least = std::min(least, std::max<int64_t>(0, *limit - *usage + cached));
  });
  return least == no_limit ? std::nullopt : std::optional(least);
}

void keep_freed_memory() {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD) && defined(M_TOP_PAD)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

void return_freed_memory() {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD) && defined(M_TOP_PAD)
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  mallopt(M_TRIM_THRESHOLD, 64 << 10);
  mallopt(M_TOP_PAD, 0);
#endif
}

}  // namespace pptrain

#include "parallel/comm/tcp/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace pptrain::comm {
namespace {

namespace fs = std::filesystem;

size_t memory_of_host() {
  const auto pages = static_cast<size_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
  const auto page = static_cast<size_t>(std::max(sysconf(_SC_PAGESIZE), 4096L));
  return pages * page;
}

// The least limit in `file` of the group and of all that hold it. A file that is absent, or says "max",
// limits nothing.
size_t least_limit(const fs::path& root, fs::path group, const char* file, size_t least) {
  while (true) {
    size_t limit = 0;
    if (std::ifstream(root / group / file) >> limit) least = std::min(least, limit);
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

}  // namespace

// Lines "0::/a/b" (cgroup v2) and "4:memory:/a/b" (v1).
size_t memory_limit(const fs::path& own_groups, const fs::path& groups) {
  size_t least = memory_of_host();
  std::ifstream lines(own_groups);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") least = least_limit(groups, group, "memory.max", least);
    if (controllers.find(",memory,") != std::string::npos)
      least = least_limit(groups / "memory", group, "memory.limit_in_bytes", least);
  }
  return least;
}

}  // namespace pptrain::comm

#include "core/base/control_groups.h"

#include <fstream>
#include <string>

namespace pptrain {

namespace fs = std::filesystem;

// Lines of the list of groups are "0::/a/b" (version 2) and "4:cpu,cpuacct:/a/b" (version 1).
void for_control_groups(const fs::path& root, std::string_view controller,
                        const std::function<void(const fs::path&, GroupVersion)>& f) {
  const auto climb = [&](const fs::path& all, fs::path group, GroupVersion version) {
    for (; !group.empty(); group = group.parent_path()) f(all / group, version);
    f(all, version);
  };
  const fs::path groups = root / "sys/fs/cgroup";
  const std::string wanted = "," + std::string(controller) + ",";
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (controllers == ",,") climb(groups, group, GroupVersion::v2);
    if (controllers.find(wanted) != std::string::npos) climb(groups / controller, group, GroupVersion::v1);
  }
}

}  // namespace pptrain

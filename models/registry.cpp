#include "models/registry.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <vector>

#include "core/base/error.h"

namespace pptrain::models {

const Architecture& find_architecture(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Architecture* architecture : architectures) {
    if (architecture->name == name) return *architecture;
    names.push_back(architecture->name);
  }
  throw UsageError(
      fmt::format("model.arch: \"{}\" is not known; valid are \"{}\"", name, fmt::join(names, "\", \"")));
}

}  // namespace pptrain::models

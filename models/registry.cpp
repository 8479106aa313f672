#include "models/registry.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "models/llama.h"
#include "models/qwen3.h"

namespace pptrain::models {
namespace {

constexpr Architecture architectures[] = {
    {.name = "llama", .hf_architecture = "LlamaForCausalLM", .check = check_llama, .block = llama_block},
    {.name = "qwen3", .hf_architecture = "Qwen3ForCausalLM", .check = check_qwen3, .block = qwen3_block},
};

}  // namespace

const Architecture& find_architecture(std::string_view name) {
  const auto* const found = std::find_if(std::begin(architectures), std::end(architectures),
                                         [&](const auto& a) { return a.name == name; });
  if (found == std::end(architectures)) {
    throw UsageError(fmt::format("model.arch: \"{}\" is not known; valid are \"{}\"", name,
                                 fmt::join(architecture_names(), "\", \"")));
  }
  return *found;
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const auto& architecture : architectures) names.push_back(architecture.name);
  return names;
}

}  // namespace pptrain::models

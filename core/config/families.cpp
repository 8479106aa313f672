#include "core/config/families.h"

#include <algorithm>

namespace pptrain::config {

bool Family::takes(std::string_view key) const {
  return std::ranges::find(keys, key) != keys.end();
}

const Family* find_family(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  return found == families().end() ? nullptr : &*found;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  return names;
}

std::vector<std::string> families_with(std::string_view key) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.takes(key)) names.emplace_back(family.name);
  }
  return names;
}

bool takes(const ModelSection& model, std::string_view key) {
  const Family* family = find_family(model.arch);
  return family != nullptr && family->takes(key);
}

bool has_rotary_embeddings(const ModelSection& model) {
  return find_family(model.arch) == nullptr || takes(model, "rope_theta");
}

bool has_experts_of_mlp_width(const ModelSection& model) {
  return takes(model, "num_experts") && !takes(model, "moe_intermediate_size");
}

}  // namespace pptrain::config

#include "app/convert/shard_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace pptrain::app {

std::vector<std::vector<size_t>> plan_shards(std::span<const uint64_t> tensor_bytes, uint64_t max_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  uint64_t bytes = 0;
  for (size_t tensor = 0; tensor < tensor_bytes.size(); ++tensor) {
    if (!shards.back().empty() && tensor_bytes[tensor] > max_bytes - std::min(bytes, max_bytes)) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(tensor);
    bytes += tensor_bytes[tensor];
  }
  return shards;
}

std::string shard_name(size_t shard, size_t shards) {
  if (shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

bool is_shard_name(const std::string& name) {
  constexpr std::string_view begin = "model", end = ".safetensors";
  if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size())
    return false;
  const std::string number = name.substr(begin.size(), name.size() - begin.size() - end.size());
  return number.empty() ||
         (number.starts_with("-") && number.find_first_not_of("-0123456789of") == std::string::npos);
}

std::string index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of}};
  return index.dump(2) + "\n";
}

}  // namespace pptrain::app

#include "models/hf_json.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::models {

void HfJson::fail(std::string_view key, const std::string& text) const {
  throw UsageError(fmt::format("{}: {}: {}", where_, key, text));
}

void HfJson::wrong(const char* key, std::string_view expected) const {
  fail(key, fmt::format("{} is not {}", object_.at(key).dump(), expected));
}

bool HfJson::has(const char* key) const {
  return object_.contains(key) && !object_.at(key).is_null();
}

bool HfJson::is_null(const char* key) const {
  return object_.contains(key) && object_.at(key).is_null();
}

bool HfJson::is_filled(const char* key) const {
  return has(key) && !object_.at(key).empty();
}

int64_t HfJson::size(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  return size(key, 0);
}

int64_t HfJson::size(const char* key, int64_t fallback) const {
  constexpr int64_t largest = 1 << 28;
  if (!has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > largest) {
    wrong(key, fmt::format("a size: expected an integer from 1 to {}", largest));
  }
  return value.get<int64_t>();
}

double HfJson::number(const char* key, double fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_number()) wrong(key, "a number");
  return object_.at(key).get<double>();
}

double HfJson::positive(const char* key, double fallback) const {
  const double value = number(key, fallback);
  if (!(value > 0)) fail(key, fmt::format("{} is not above 0", value));
  return value;
}

bool HfJson::flag(const char* key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_boolean()) wrong(key, "true or false");
  return object_.at(key).get<bool>();
}

std::vector<int64_t> HfJson::integers(const char* key) const {
  std::vector<int64_t> result;
  if (!has(key)) return result;
  const nlohmann::json& list = object_.at(key);
  if (!list.is_array()) wrong(key, "a list of integers");
  for (const nlohmann::json& value : list) {
    constexpr int64_t largest = 1 << 28;
    if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > largest)
      wrong(key, fmt::format("a list of integers from 0 to {}", largest));
    result.push_back(value.get<int64_t>());
  }
  return result;
}

std::string HfJson::text(const char* key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!object_.at(key).is_string()) wrong(key, "a string");
  return object_.at(key).get<std::string>();
}

HfJson HfJson::object(const char* key) const {
  if (!has(key)) fail(key, "is missing");
  if (!object_.at(key).is_object()) wrong(key, "an object");
  return HfJson(object_.at(key), fmt::format("{}: {}", where_, key));
}

}  // namespace pptrain::models

#include "core/text/tokenizer/json_part.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/io/strict_json.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

JsonPart::JsonPart(const nlohmann::json& value, std::string file, std::string place)
    : value_(value), file_(std::move(file)), place_(std::move(place)) {}

std::string JsonPart::with_place(std::string_view what) const {
  return place_.empty() ? fmt::format("{}: {}", file_, what) : fmt::format("{}: {}: {}", file_, place_, what);
}

void JsonPart::refuse(std::string_view what) const {
  throw Error(with_place(what));
}

void JsonPart::warn(std::string_view what) const {
  spdlog::warn("{}", with_place(what));
}

void JsonPart::require_object() const {
  if (!value_.is_object()) refuse("must be an object");
}

JsonPart JsonPart::at(const char* key) const {
  require_object();
  const auto found = value_.find(key);
  if (found == value_.end()) refuse(fmt::format("'{}' is missing", key));
  return {*found, file_, place_.empty() ? key : place_ + '.' + key};
}

std::optional<JsonPart> JsonPart::find(const char* key) const {
  require_object();
  const auto found = value_.find(key);
  if (found == value_.end() || found->is_null()) return std::nullopt;
  return at(key);
}

std::vector<JsonPart> JsonPart::elements() const {
  if (!value_.is_array()) refuse("must be a list");
  std::vector<JsonPart> parts;
  parts.reserve(value_.size());
  for (size_t i = 0; i < value_.size(); ++i)
    parts.emplace_back(value_[i], file_, fmt::format("{}[{}]", place_, i));
  return parts;
}

void JsonPart::only(std::initializer_list<const char*> keys) const {
  require_object();
  for (const auto& item : value_.items()) {
    if (std::ranges::find(keys, item.key(), [](const char* key) { return std::string_view(key); }) ==
        keys.end()) {
      refuse(fmt::format("'{}' is not supported", item.key()));
    }
  }
}

std::string JsonPart::text() const {
  if (!value_.is_string()) refuse("must be a text");
  return value_.get<std::string>();
}

bool JsonPart::flag() const {
  if (!value_.is_boolean()) refuse("must be true or false");
  return value_.get<bool>();
}

int64_t JsonPart::integer(int64_t min, int64_t max) const {
  return io::integer_from(value_, min, max, place_.empty() ? file_ : file_ + ": " + place_);
}

bool JsonPart::flag(const char* key, bool otherwise) const {
  const std::optional<JsonPart> part = find(key);
  return part ? part->flag() : otherwise;
}

std::string JsonPart::character(const char* key) const {
  const std::string value = text(key);
  if (value.empty() || code_point_size(value[0]) != value.size()) at(key).refuse("must be one character");
  return value;
}

}  // namespace pptrain::tokenizer

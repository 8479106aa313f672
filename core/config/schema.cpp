// The JSON schema of a job, printed from the table of options.
#include <spdlog/fmt/fmt.h>

#include <cctype>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "core/config/field.h"
#include "core/config/loader.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

using Json = nlohmann::ordered_json;

// Whole numbers without a point, as people write them.
Json limit(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

Json number_schema(const Option& option, const char* type) {
  Json schema = {{"type", type}};
  const Range& range = option.range;
  if (range.min) schema[range.min_open ? "exclusiveMinimum" : "minimum"] = limit(*range.min);
  if (range.max) schema[range.max_open ? "exclusiveMaximum" : "maximum"] = limit(*range.max);
  return schema;
}

Json list_of(const Option& option, const Json& element) {
  Json list = {{"type", "array"},
               {"items", element},
               {"minItems", option.may_be_empty ? 0 : option.length.value_or(1)}};
  if (option.length) list["maxItems"] = *option.length;
  return list;
}

// "[Cc][Oo][Ss]|[Ww][Ss][Dd]": the words in any case, for the regular expressions of all validators.
std::string in_any_case(const std::vector<std::string>& words) {
  std::string pattern;
  for (const std::string& word : words) {
    if (!pattern.empty()) pattern += '|';
    for (const char c : word) {
      const auto letter = static_cast<unsigned char>(c);
      pattern += std::isalpha(letter) ? fmt::format("[{}{}]", static_cast<char>(std::toupper(letter)),
                                                    static_cast<char>(std::tolower(letter)))
                                      : std::string(1, c);
    }
  }
  return pattern;
}

// "^(none|full):[1-9][0-9]{0,4}(/(none|full):[1-9][0-9]{0,4})*$", in any case.
std::string pattern_of_runs(const Option& option) {
  std::vector<std::string> words = option.literals;
  std::erase(words, option.alone);
  const std::string run = fmt::format("({}):[1-9][0-9]{{0,4}}", in_any_case(words));
  return fmt::format("^{0}(/{0})*$", run);
}

// If more words are allowed than an editor should propose, the value is any of both.
Json string_schema(const Option& option) {
  Json schema = {{"type", "string"}};
  if (!option.literals.empty()) {
    schema["enum"] = option.literals;
    std::string pattern = fmt::format("^({})$", in_any_case(option.literals));
    if (option.in_runs) pattern += "|" + pattern_of_runs(option);
    return {{"anyOf", {schema, Json{{"type", "string"}, {"pattern", std::move(pattern)}}}}};
  }
  if (option.is_required) schema["minLength"] = 1;
  if (option.known_words.empty()) return schema;
  return {{"anyOf", {Json{{"type", "string"}, {"enum", option.known_words}}, schema}}};
}

// One word, or a list of them.
Json words_schema(const Option& option) {
  const Json one = string_schema(option);
  if (option.alone.empty()) return {{"oneOf", {one, list_of(option, one)}}};
  Option others = option;
  std::erase(others.literals, option.alone);
  return {
      {"oneOf", {one, list_of(option, string_schema(others)), Json{{"const", Json::array({option.alone})}}}}};
}

struct TypeSchema {
  const Option& option;
  Json operator()(const Access<bool>&) const { return {{"type", "boolean"}}; }
  Json operator()(const Access<int64_t>&) const { return number_schema(option, "integer"); }
  Json operator()(const Access<double>&) const { return number_schema(option, "number"); }
  Json operator()(const Access<std::string>&) const { return string_schema(option); }
  template <class T>
  Json operator()(const Access<std::optional<T>>&) const {
    return (*this)(Access<T>());
  }
  Json operator()(const Access<std::vector<double>>&) const {
    return list_of(option, number_schema(option, "number"));
  }
  Json operator()(const Access<std::vector<int64_t>>&) const {
    return list_of(option, number_schema(option, "integer"));
  }
  Json operator()(const Access<std::vector<std::string>>&) const { return words_schema(option); }
  Json operator()(const Access<PipelineSplit>&) const {
    return {{"oneOf", {string_schema(option), list_of(option, number_schema(option, "integer"))}}};
  }
};

Json type_schema(const Option& option) {
  const Json schema = std::visit(TypeSchema{option}, option.target);
  return option.unset_word.empty() ? schema : Json{{"anyOf", {schema, Json{{"const", option.unset_word}}}}};
}

// `defaults`: a job in which the option has its default.
Json option_schema(const Option& option, const JobConfig& defaults) {
  Json schema = {{"title", option.name()}};
  schema["description"] = option.acts_when
                              ? fmt::format("{} Acts only with {}.", option.meaning, option.acts_when->words)
                              : option.meaning;
  schema.update(type_schema(option));
  const std::optional<std::string> value = toml_value(option, defaults);
  if (value && !option.is_required)
    schema["default"] = Json::parse(*value);  // these TOML values are JSON too
  return schema;
}

Json table_schema(const std::string& title) {
  return {
      {"title", title}, {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

// An object whose `key` is `word`.
Json having(const std::string& key, const std::string& word) {
  return {{"required", {key}}, {"properties", {{key, {{"const", word}}}}}};
}

void require(Json& object, const std::string& name) {
  Json& names = object["required"];
  for (const Json& present : names) {
    if (present.get_ref<const std::string&>() == name) return;
  }
  names.push_back(name);
}

// Each element must have what is required, but for what another key makes needless.
void require_field(Json& table, const Option& field) {
  const auto& [key, word] = field.needless_with;
  if (key.empty()) return require(table, field.key);
  table["anyOf"] = {Json{{"required", {field.key}}}, having(key, word)};
}

Json table_list_schema(const TableList& list) {
  Json table = table_schema(fmt::format("[[{}]]", list.section));
  const JobConfig defaults = list.fresh();
  for (const Option& field : list.fields) {
    table["properties"][field.key] = option_schema(field, defaults);
    if (field.is_required) require_field(table, field);
  }
  return {{"title", list.section}, {"description", list.meaning}, {"type", "array"}, {"items", table}};
}

// The schema of a section, made if need be; "model.rope_scaling" lies inside "model".
Json& section_schema(Json& root, const std::string& section, bool is_required) {
  Json* here = &root;
  std::istringstream names(section);
  std::string path;
  for (std::string name; std::getline(names, name, '.');) {
    path += (path.empty() ? "" : ".") + name;
    if (is_required) require(*here, name);
    Json& properties = (*here)["properties"];
    if (!properties.contains(name)) properties[name] = table_schema(fmt::format("[{}]", path));
    here = &properties[name];
  }
  return *here;
}

}  // namespace

std::string json_schema() {
  Json root = {{"$schema", "http://json-schema.org/draft-07/schema#"},
               {"description",
                "Every key of a pptrain job. Generated from core/config/options: pptrain config --schema "
                "> configs/schema.json"}};
  root.update(table_schema("pptrain job"));
  root["properties"]["include"] = {
      {"title", "include"},
      {"description",
       "A job file that is read first, relative to this one's folder. The keys of this file win."},
      {"type", "string"}};
  const JobConfig defaults;
  for (const Option& option : options()) {
    Json& section = section_schema(root, option.section, option.is_required);
    section["properties"][option.key] = option_schema(option, defaults);
    if (!option.instead.empty()) {
      const std::string list = option.instead.substr(option.instead.rfind('.') + 1);
      section["anyOf"] = {Json{{"required", {option.key}}}, Json{{"required", {list}}}};
      const auto& [key, word] = option.needless_with;
      if (!key.empty()) section["anyOf"].push_back(having(key, word));
    } else if (option.is_required) {
      require(section, option.key);
    }
  }
  for (const TableList& list : table_lists())
    section_schema(root, list.parent(), false)["properties"][list.key()] = table_list_schema(list);
  return root.dump(2) + "\n";
}

}  // namespace pptrain::config

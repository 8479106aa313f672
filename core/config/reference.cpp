// What is printed from the table of options: a job in full, the commented reference, the JSON schema.
#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config/field.h"
#include "core/config/loader.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

using Json = nlohmann::ordered_json;

// As comment lines of at most 110 columns.
std::string comment(std::string_view text) {
  constexpr size_t width = 108;
  std::string out;
  while (!text.empty()) {
    size_t end = text.size();
    if (end > width) {
      const size_t space = text.rfind(' ', width);
      end = space == std::string_view::npos ? width : space;
    }
    out += fmt::format("# {}\n", text.substr(0, end));
    text.remove_prefix(end == text.size() ? end : end + (text[end] == ' ' ? 1 : 0));
  }
  return out;
}

// "integer, >= 1; default 1000"
std::string describe_type(const Option& option, const std::optional<std::string>& value) {
  std::string text = type_name(option);
  if (const std::string range = option.range.describe(); !range.empty()) {
    text += ", " + range;
  }
  text += option.is_required ? "; required" : value ? "; default " + *value : "; not set by default";
  if (option.acts_when) {
    text += fmt::format("; acts only with {}", option.acts_when->describe());
  }
  return text;
}

std::string example_value(const Option& option) {
  if (std::holds_alternative<Access<std::optional<bool>>>(option.target)) return "true";
  return std::holds_alternative<Access<std::string>>(option.target) ? "\"...\"" : "1";
}

Json range_schema(const Option& option, const char* type) {
  Json schema = {{"type", type}};
  if (option.range.min) {
    schema[option.range.min_open ? "exclusiveMinimum" : "minimum"] = *option.range.min;
  }
  if (option.range.max) {
    schema[option.range.max_open ? "exclusiveMaximum" : "maximum"] = *option.range.max;
  }
  return schema;
}

Json list_schema(const Option& option, const char* element) {
  Json list = {
      {"type", "array"}, {"items", range_schema(option, element)}, {"minItems", option.length.value_or(1)}};
  if (option.length) {
    list["maxItems"] = *option.length;
  }
  return list;
}

Json type_schema(const Option& option) {
  struct Schema {
    const Option& option;
    Json operator()(const Access<bool>&) const { return {{"type", "boolean"}}; }
    Json operator()(const Access<int64_t>&) const { return range_schema(option, "integer"); }
    Json operator()(const Access<double>&) const { return range_schema(option, "number"); }
    Json operator()(const Access<std::optional<bool>>&) const { return {{"type", "boolean"}}; }
    Json operator()(const Access<std::optional<int64_t>>&) const { return range_schema(option, "integer"); }
    Json operator()(const Access<PipelineSplit>&) const {
      return {{"anyOf", {Json{{"type", "string"}}, list_schema(option, "integer")}}};
    }
    Json operator()(const Access<std::vector<double>>&) const { return list_schema(option, "number"); }
    Json operator()(const Access<std::vector<std::string>>&) const {
      const Json one = (*this)(Access<std::string>());
      return {{"anyOf", {one, Json{{"type", "array"}, {"items", one}, {"minItems", 1}}}}};
    }
    Json operator()(const Access<std::string>&) const {
      Json schema = {{"type", "string"}};
      if (!option.literals.empty()) {
        schema["enum"] = option.literals;
      } else if (option.is_required) {
        schema["minLength"] = 1;
      }
      return schema;
    }
  };
  return std::visit(Schema{option}, option.target);
}

Json option_schema(const Option& option) {
  Json schema = type_schema(option);
  schema["description"] =
      option.acts_when ? fmt::format("{} Acts only with {}.", option.meaning, option.acts_when->describe())
                       : option.meaning;
  const std::optional<std::string> value = toml_value(option, JobConfig());
  if (value && !option.is_required) {
    schema["default"] = Json::parse(*value);  // these TOML values are JSON too
  }
  return schema;
}

Json empty_section() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

void require(Json& object, const std::string& name) {
  Json& names = object["required"];
  for (const Json& present : names) {
    if (present.get_ref<const std::string&>() == name) {
      return;
    }
  }
  names.push_back(name);
}

// The schema of a section, made if need be; "model.rope_scaling" lies inside "model".
Json& section_schema(Json& root, const std::string& section, bool is_required) {
  Json* here = &root;
  std::istringstream names(section);
  for (std::string name; std::getline(names, name, '.');) {
    if (is_required) {
      require(*here, name);
    }
    Json& properties = (*here)["properties"];
    if (!properties.contains(name)) {
      properties[name] = empty_section();
    }
    here = &properties[name];
  }
  return *here;
}

}  // namespace

std::string to_toml(const JobConfig& job) {
  std::string out;
  std::string section;
  for (const Option& option : options()) {
    if (option.section != section) {
      section = option.section;
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    if (const std::optional<std::string> value = toml_value(option, job)) {
      out += fmt::format("{} = {}\n", option.key, *value);
    }
  }
  return out;
}

std::string reference_toml() {
  std::string out =
      "# Every key of a pptrain job: what it means, its type and range, and its default, which is the value "
      "shown.\n"
      "# Generated from core/config/options.cpp: pptrain config --reference > configs/reference.toml\n";
  std::string section;
  for (const Option& option : options()) {
    if (option.section != section) {
      section = option.section;
      out += fmt::format("\n[{}]\n", section);
    }
    const std::optional<std::string> value = toml_value(option, JobConfig());
    out += fmt::format("\n{}{}", comment(option.meaning), comment(describe_type(option, value)));
    const bool shown = value && !option.is_required;
    out += fmt::format("{}{} = {}\n", shown ? "" : "# ", option.key, shown ? *value : example_value(option));
  }
  return out;
}

std::string json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "pptrain job"}};
  root.update(empty_section());
  for (const Option& option : options()) {
    Json& section = section_schema(root, option.section, option.is_required);
    section["properties"][option.key] = option_schema(option);
    if (option.is_required) {
      require(section, option.key);
    }
  }
  return root.dump(2) + "\n";
}

}  // namespace pptrain::config

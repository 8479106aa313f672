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
  if (!option.instead.empty()) {
    text += fmt::format("; required, unless there are [[{}]]", option.instead);
    return text;
  }
  text += option.is_required ? "; required" : value ? "; default " + *value : "; not set by default";
  if (option.acts_when) {
    text += fmt::format("; acts only with {}", option.acts_when->describe());
  }
  return text;
}

std::vector<const TableList*> lists_of(std::string_view section) {
  std::vector<const TableList*> result;
  for (const TableList& list : table_lists()) {
    if (list.parent() == section) result.push_back(&list);
  }
  return result;
}

// Of one element, whose options live in `job`.
std::string table_toml(const TableList& list, const JobConfig& job) {
  std::string out = fmt::format("\n[[{}]]\n", list.section);
  for (const Option& field : list.fields) {
    if (const std::optional<std::string> value = toml_value(field, job))
      out += fmt::format("{} = {}\n", field.key, *value);
  }
  return out;
}

std::string example_value(const Option& option) {
  if (std::holds_alternative<Access<std::optional<bool>>>(option.target)) return "true";
  const bool text = std::holds_alternative<Access<std::string>>(option.target) ||
                    std::holds_alternative<Access<std::vector<std::string>>>(option.target);
  return text ? "\"...\"" : "1";
}

// One option: what it means, and its default, as a comment where there is none or `commented`.
std::string option_reference(const Option& option, const JobConfig& defaults, bool commented) {
  const std::optional<std::string> value = toml_value(option, defaults);
  const bool shown = value && !option.is_required;
  return fmt::format("\n{}{}{}{} = {}\n", comment(option.meaning), comment(describe_type(option, value)),
                     shown && !commented ? "" : "# ", option.key, shown ? *value : example_value(option));
}

// A list of tables, which is empty by default.
std::string list_reference(const TableList& list) {
  std::string out = fmt::format("\n{}# [[{}]]\n", comment(list.meaning), list.section);
  for (const Option& field : list.fields) out += option_reference(field, list.fresh(), /*commented=*/true);
  return out;
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
  Json list = {{"type", "array"},
               {"items", range_schema(option, element)},
               {"minItems", option.may_be_empty ? 0 : option.length.value_or(1)}};
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
    Json operator()(const Access<std::optional<double>>&) const { return range_schema(option, "number"); }
    Json operator()(const Access<PipelineSplit>&) const {
      return {{"anyOf", {Json{{"type", "string"}}, list_schema(option, "integer")}}};
    }
    Json operator()(const Access<std::vector<double>>&) const { return list_schema(option, "number"); }
    Json operator()(const Access<std::vector<int64_t>>&) const { return list_schema(option, "integer"); }
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

// `defaults`: a job in which the option has its default.
Json option_schema(const Option& option, const JobConfig& defaults) {
  Json schema = type_schema(option);
  schema["description"] =
      option.acts_when ? fmt::format("{} Acts only with {}.", option.meaning, option.acts_when->describe())
                       : option.meaning;
  const std::optional<std::string> value = toml_value(option, defaults);
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

Json list_schema(const TableList& list) {
  Json table = empty_section();
  const JobConfig defaults = list.fresh();
  for (const Option& field : list.fields) {
    table["properties"][field.key] = option_schema(field, defaults);
    if (field.is_required) require(table, field.key);
  }
  return {{"type", "array"}, {"items", table}, {"description", list.meaning}};
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
  for (const std::string& section : sections()) {
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const Option& option : options()) {
      if (option.section != section) continue;
      if (const std::optional<std::string> value = toml_value(option, job))
        out += fmt::format("{} = {}\n", option.key, *value);
    }
    for (const TableList* list : lists_of(section)) {
      for (size_t i = 0; i < list->size(job); ++i) out += table_toml(*list, list->only(job, i));
    }
  }
  return out;
}

std::string reference_toml() {
  std::string out =
      "# Every key of a pptrain job: what it means, its type and range, and its default, which is the value "
      "shown.\n"
      "# Generated from core/config/options.cpp: pptrain config --reference > configs/reference.toml\n";
  for (const std::string& section : sections()) {
    out += fmt::format("\n[{}]\n", section);
    for (const Option& option : options()) {
      if (option.section == section) out += option_reference(option, JobConfig(), /*commented=*/false);
    }
    for (const TableList* list : lists_of(section)) out += list_reference(*list);
  }
  return out;
}

std::string json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "pptrain job"}};
  root.update(empty_section());
  const JobConfig defaults;
  for (const Option& option : options()) {
    Json& section = section_schema(root, option.section, option.is_required);
    section["properties"][option.key] = option_schema(option, defaults);
    if (!option.instead.empty()) {
      const std::string list = option.instead.substr(option.instead.rfind('.') + 1);
      section["anyOf"] = {Json{{"required", {option.key}}}, Json{{"required", {list}}}};
    } else if (option.is_required) {
      require(section, option.key);
    }
  }
  for (const TableList& list : table_lists())
    section_schema(root, list.parent(), false)["properties"][list.key()] = list_schema(list);
  return root.dump(2) + "\n";
}

}  // namespace pptrain::config

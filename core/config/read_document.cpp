// From TOML to a Document. The one file that knows toml++.
#include <spdlog/fmt/fmt.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/field.h"
#include "core/config/nearest.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

std::string found_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return fmt::format("the string {}", toml_string(node.as_string()->get()));
    case toml::node_type::integer:
      return fmt::format("the integer {}", node.as_integer()->get());
    case toml::node_type::floating_point:
      return fmt::format("the float {}", node.as_floating_point()->get());
    case toml::node_type::boolean:
      return node.as_boolean()->get() ? "true" : "false";
    default:
      return "a date or time";
  }
}

// A list of tables is a key of the section that it lies in.
std::vector<std::string> keys_of(std::string_view section) {
  std::vector<std::string> keys;
  for (const TableList& list : table_lists()) {
    if (list.section == section) {
      for (const Option& field : list.fields) keys.push_back(field.key);
    }
  }
  for (const Option& option : options()) {
    if (option.section == section) {
      keys.push_back(option.key);
    }
  }
  for (const TableList& list : table_lists()) {
    if (list.parent() == section) keys.push_back(list.key());
  }
  return keys;
}

// Of the section if its best fits well, else a key of that very name in another section, else the section's
// best. `section` may be empty: then only a key of that very name will do.
std::string nearest_option(std::string_view section, std::string_view key) {
  const std::string here = nearest(key, keys_of(section));
  if (here.empty() || edit_distance(key, here) > 2) {
    const auto elsewhere = std::ranges::find(options(), to_lower(key), &Option::key);
    if (elsewhere != options().end()) {
      return elsewhere->name();
    }
  }
  return here.empty() ? "" : fmt::format("{}.{}", section, here);
}

bool is_section(std::string_view name) {
  return std::ranges::find(sections(), name) != sections().end();
}

// What is wrong with one value; empty if nothing.
using Fault = std::string;

// Takes values from TOML into the Document. `fixed`, if set, is where everything was given (an override).
class Reader {
 public:
  Reader(Document& document, std::optional<Origin> fixed) : document_(document), fixed_(std::move(fixed)) {}

  void read_root(const toml::table& root) {
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      if (!is_section(name)) {
        unknown_section(name, at(key.source()));
      } else if (const toml::table* table = node.as_table()) {
        read_section(name, *table);
      } else {
        add(at(node.source()), name,
            fmt::format("expected a section, [{}]; found {}", name, found_type(node)));
      }
    }
  }

  void read_section(const std::string& section, const toml::table& table) {
    if (!fixed_) {
      document_.sections.try_emplace(section, at(table.source()));
    }
    for (const auto& [key, node] : table) {
      const std::string name = fmt::format("{}.{}", section, key.str());
      if (const Option* option = find_option(name)) {
        read_option(*option, node);
      } else if (const TableList* list = find_table_list(name)) {
        read_list(*list, node);
      } else if (!is_section(name)) {
        unknown_key(section, std::string(key.str()), at(key.source()));
      } else if (const toml::table* inner = node.as_table()) {
        read_section(name, *inner);
      } else {
        add(at(node.source()), name,
            fmt::format("expected a section, [{}]; found {}", name, found_type(node)));
      }
    }
  }

  void read_option(const Option& option, const toml::node& node) {
    read_value(option, option.name(), node, document_.job);
  }

  // Replaces what the list held. An element's field is known by the element's place:
  // "optimizer.groups[0].match".
  void read_list(const TableList& list, const toml::node& node) {
    document_.options.insert_or_assign(list.section, at(node.source()));
    list.clear(document_.job);
    const toml::array* array = node.as_array();
    if (!array ||
        std::ranges::any_of(*array, [](const toml::node& element) { return !element.is_table(); })) {
      document_.broken.insert(list.section);
      return add(at(node.source()), list.section,
                 fmt::format("wrong type: expected a list of tables, [[{}]]; found {}", list.section,
                             array ? "a list of something else" : found_type(node)));
    }
    document_.broken.erase(list.section);
    for (size_t i = 0; i < array->size(); ++i) {
      read_element(list, fmt::format("{}[{}]", list.section, i), *(*array)[i].as_table());
    }
  }

  void unknown_section(const std::string& name, const Origin& origin) {
    const std::string option = nearest_option("", name);
    const std::string guess = option.empty() ? fmt::format("[{}]", nearest(name, sections())) : option;
    add(origin, name,
        fmt::format("unknown section; did you mean {}? The sections are: {}", guess,
                    fmt::join(sections(), ", ")));
  }

  void unknown_key(const std::string& section, const std::string& key, const Origin& origin) {
    const bool is_list = find_table_list(section) != nullptr;
    add(origin, fmt::format("{}.{}", section, key),
        fmt::format("unknown key; did you mean {}? The keys of {}{}{} are: {}", nearest_option(section, key),
                    is_list ? "[[" : "[", section, is_list ? "]]" : "]", fmt::join(keys_of(section), ", ")));
  }

 private:
  void read_element(const TableList& list, const std::string& element, const toml::table& table) {
    JobConfig job = list.fresh();
    for (const auto& [key, node] : table) {
      if (const Option* field = list.find(key.str())) {
        read_value(*field, fmt::format("{}.{}", element, field->key), node, job);
      } else {
        unknown_key(list.section, std::string(key.str()), at(key.source()));
      }
    }
    for (const Option& field : list.fields) {
      if (field.is_required && !table.contains(field.key))
        add(at(table.source()), fmt::format("{}.{}", element, field.key),
            fmt::format("is required. {}", field.meaning));
    }
    list.append(document_.job, job);
  }

  // `name`: of the value in this document.
  void read_value(const Option& option, const std::string& name, const toml::node& node, JobConfig& job) {
    document_.options.insert_or_assign(name, at(node.source()));
    fault_at_ = &node;
    const Fault fault =
        std::visit([&](const auto& access) { return take(option, node, access(job)); }, option.target);
    if (fault.empty()) {
      document_.broken.erase(name);
    } else {
      document_.broken.insert(name);
      add(at(fault_at_->source()), name, fault);
    }
  }

  Origin at(const toml::source_region& region) const {
    if (fixed_) {
      return *fixed_;
    }
    return {.where = fmt::format("{}:{}:{}", document_.file, region.begin.line, region.begin.column),
            .line = region.begin.line,
            .column = region.begin.column};
  }

  void add(const Origin& origin, std::string_view name, std::string_view text) {
    document_.problems.push_back({origin, std::string(name), std::string(text)});
  }

  static Fault wrong_type(const Option& option, const toml::node& node) {
    return fmt::format("wrong type: expected {}; found {}", type_name(option), found_type(node));
  }

  static Fault check_length(const Option& option, size_t length) {
    return !option.length || length == *option.length
               ? ""
               : fmt::format("a list of {}; expected a {}", length, type_name(option));
  }

  Fault take(const Option& option, const toml::node& node, bool& out) const {
    const auto* value = node.as_boolean();
    if (!value) {
      return wrong_type(option, node);
    }
    out = value->get();
    return "";
  }

  Fault take(const Option& option, const toml::node& node, int64_t& out) const {
    const auto* value = node.as_integer();
    if (!value) {
      return wrong_type(option, node);
    }
    const Fault fault =
        range_fault(option, static_cast<double>(value->get()), fmt::format("{}", value->get()));
    if (fault.empty()) {
      out = value->get();
    }
    return fault;
  }

  template <class T>
  Fault take(const Option& option, const toml::node& node, std::optional<T>& out) const {
    T value{};
    const Fault fault = take(option, node, value);
    if (fault.empty()) {
      out = value;
    }
    return fault;
  }

  Fault take(const Option& option, const toml::node& node, double& out) const {
    if (!node.is_number()) {
      return wrong_type(option, node);
    }
    const double value =
        node.is_integer() ? static_cast<double>(node.as_integer()->get()) : node.as_floating_point()->get();
    const Fault fault = range_fault(option, value, fmt::format("{}", value));
    if (fault.empty()) {
      out = value;
    }
    return fault;
  }

  Fault take(const Option& option, const toml::node& node, std::string& out) const {
    const auto* value = node.as_string();
    if (!value) {
      return wrong_type(option, node);
    }
    if (value->get().find('\0') != std::string::npos) {
      return "holds a NUL character";
    }
    if (option.is_required && value->get().empty()) {
      return "is required, and may not be empty";
    }
    return option.literals.empty() ? (out = value->get(), "") : take_literal(option, value->get(), out);
  }

  static Fault take_literal(const Option& option, const std::string& value, std::string& out) {
    const std::string wanted = option.ignores_case ? to_lower(value) : value;
    if (std::ranges::find(option.literals, wanted) != option.literals.end()) {
      out = wanted;
      return "";
    }
    const auto refusal =
        std::ranges::find(option.refusals, to_lower(value), &std::pair<std::string, std::string>::first);
    if (refusal != option.refusals.end()) {
      return fmt::format("{} (valid: {})", refusal->second, fmt::join(option.literals, ", "));
    }
    return fmt::format("{} is not a valid value; did you mean {}? Valid: {}", toml_string(value),
                       toml_string(nearest(value, option.literals)), fmt::join(option.literals, ", "));
  }

  Fault take(const Option& option, const toml::node& node, std::vector<std::string>& out) {
    if (!node.is_string()) return take<std::string>(option, node, out);
    std::string only;
    const Fault fault = take(option, node, only);
    if (fault.empty()) {
      out = {std::move(only)};
    }
    return fault;
  }

  // What a string says is checked with the schedule.
  Fault take(const Option& option, const toml::node& node, PipelineSplit& out) {
    if (const auto* text = node.as_string()) {
      out = {.text = text->get(), .layers = {}};
      return "";
    }
    std::vector<int64_t> layers;
    const Fault fault = take(option, node, layers);
    if (fault.empty()) {
      out = {.text = "", .layers = std::move(layers)};
    }
    return fault;
  }

  template <class T>
  Fault take(const Option& option, const toml::node& node, std::vector<T>& out) {
    const toml::array* array = node.as_array();
    if (!array) {
      return wrong_type(option, node);
    }
    if (array->empty() && !option.may_be_empty) {
      return fmt::format("an empty list; expected {}", type_name(option));
    }
    std::vector<T> values;
    for (const toml::node& element : *array) {
      const Fault fault = take(option, element, values.emplace_back());
      if (!fault.empty()) {
        fault_at_ = &element;
        return fault;
      }
    }
    const Fault fault = check_length(option, values.size());
    if (fault.empty()) {
      out = std::move(values);
    }
    return fault;
  }

  Document& document_;
  std::optional<Origin> fixed_;
  const toml::node* fault_at_ = nullptr;  // the value, or the element of a list, that a fault lies in
};

std::string trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const size_t last = text.find_last_not_of(" \t\r\n");
  return first == std::string_view::npos ? "" : std::string(text.substr(first, last - first + 1));
}

// One TOML value, as the table {v = value}; nothing if it is not one.
std::optional<toml::table> parse_value(const std::string& value) {
  try {
    toml::table table = toml::parse("v = " + value);
    return table.size() == 1 && table.contains("v") ? std::optional(std::move(table)) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// In TOML, or a bare word; what is meant for a string is one in any case, so that run.dir=2024 works.
std::optional<toml::table> parse_override(const std::string& value, const Option* option) {
  std::optional<toml::table> parsed = parse_value(value);
  const bool wants_string = option && std::holds_alternative<Access<std::string>>(option->target);
  if (parsed && (!wants_string || parsed->get("v")->is_string())) {
    return parsed;
  }
  return parse_value(toml_string(value));
}

void read_override(Document& document, const std::string& text) {
  const Origin origin{.where = "--set " + text, .from_override = true};
  const auto refuse = [&](const std::string& reason) { document.problems.push_back({origin, "", reason}); };
  const size_t equals = text.find('=');
  const std::string name = trim(text.substr(0, equals));
  if (equals == std::string::npos || name.empty()) {
    return refuse("expected section.key=value");
  }
  Reader reader(document, origin);
  const Option* option = find_option(name);
  const std::optional<toml::table> parsed = parse_override(trim(text.substr(equals + 1)), option);
  if (!parsed) {
    return refuse("the value is not UTF-8 text");
  }
  const toml::node& node = *parsed->get("v");
  const size_t dot = name.rfind('.');
  const std::string section = name.substr(0, dot == std::string::npos ? 0 : dot);
  if (option) {
    reader.read_option(*option, node);
  } else if (const TableList* list = find_table_list(name)) {
    reader.read_list(*list, node);
  } else if (is_section(name) && node.is_table()) {
    reader.read_section(name, *node.as_table());
  } else if (is_section(name)) {
    refuse(fmt::format("names a section; expected {}.key=value, with a key of: {}", name,
                       fmt::join(keys_of(name), ", ")));
  } else if (find_table_list(section)) {
    refuse(fmt::format("{0} is a list of tables: give all of it, {0}=[{{...}}, ...]", section));
  } else if (is_section(section)) {
    reader.unknown_key(section, name.substr(dot + 1), origin);
  } else {
    reader.unknown_section(section.empty() ? name : section, origin);
  }
}

toml::table parse_toml(const std::string& text, const std::string& file) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    const toml::source_position begin = error.source().begin;
    throw UsageError(
        fmt::format("{}:{}:{}: not valid TOML: {}", file, begin.line, begin.column, error.description()));
  }
}

}  // namespace

Document read_document(const std::string& text, const std::string& file,
                       std::span<const std::string> overrides) {
  Document document;
  document.file = file;
  Reader(document, std::nullopt).read_root(parse_toml(text, file));
  for (const std::string& override_text : overrides) {
    read_override(document, override_text);
  }
  for (const Option& option : options()) {
    if (option.is_required && !document.given(option.name())) {
      document.report(option.name(), fmt::format("is required. {}", option.meaning));
      document.broken.insert(option.name());
    }
  }
  return document;
}

}  // namespace pptrain::config

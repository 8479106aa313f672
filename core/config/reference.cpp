// What is printed from the table of options as TOML: a job in full, the commented reference.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/config/document.h"
#include "core/config/field.h"
#include "core/config/job_paths.h"
#include "core/config/loader.h"
#include "core/config/nearest.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

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
  if (const std::string range = option.range.describe(); !range.empty()) text += ", " + range;
  if (!option.instead.empty()) {
    text += fmt::format("; required, unless there are [[{}]]", option.instead);
    const auto& [key, word] = option.needless_with;
    return key.empty() ? text : text + fmt::format(" or {} = {}", key, toml_string(word));
  }
  text += option.is_required ? "; required" : value ? "; default " + *value : "; not set by default";
  if (option.acts_when) text += fmt::format("; acts only with {}", option.acts_when->words);
  return text;
}

auto lists_of(std::string_view section) {
  return table_lists() | std::views::filter([=](const TableList& list) { return list.parent() == section; });
}

// TOML of one element, whose options live in `job`.
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

// One option: its meaning and its default. The default is a comment if there is none or if `commented`.
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

// The options for which `is_wanted` holds, and all lists of tables; no section without any.
template <class Wanted>
std::string job_toml(const JobConfig& job, const Wanted& is_wanted) {
  std::string out;
  for (const std::string& section : sections()) {
    std::string body;
    for (const Option& option : options()) {
      if (option.section != section || !is_wanted(option)) continue;
      if (const std::optional<std::string> value = toml_value(option, job))
        body += fmt::format("{} = {}\n", option.key, *value);
    }
    for (const TableList& list : lists_of(section)) {
      for (size_t i = 0; i < list.size(job); ++i) body += table_toml(list, list.only(job, i));
    }
    if (!body.empty()) out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", section, body);
  }
  return out;
}

std::string section_reference(const std::string& section) {
  std::string out = fmt::format("\n[{}]\n", section);
  for (const Option& option : options()) {
    if (option.section == section) out += option_reference(option, JobConfig(), /*commented=*/false);
  }
  for (const TableList& list : lists_of(section)) out += list_reference(list);
  return out;
}

// "train.steps", or what an unknown name most likely means; "" if nothing is near.
std::string meant_by(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view key = dot == std::string_view::npos ? name : name.substr(dot + 1);
  if (const std::string alias = alias_of_key(name.substr(0, dot == name.npos ? 0 : dot), key); !alias.empty())
    return alias;
  std::vector<std::string> names = sections();
  for (const Option& option : options()) {
    if (option.key == key) return option.name();
    names.push_back(option.name());
  }
  return nearest(name, names);
}

}  // namespace

std::string reference_of(std::string_view name) {
  if (const TableList* list = find_table_list(name)) return list_reference(*list).substr(1);
  if (std::ranges::find(sections(), name) != sections().end())
    return section_reference(std::string(name)).substr(1);
  if (const Option* option = find_option(name))
    return fmt::format("[{}]{}", option->section,
                       option_reference(*option, JobConfig(), /*commented=*/false));
  const size_t dot = name.rfind('.');
  if (const TableList* list = dot == name.npos ? nullptr : find_table_list(name.substr(0, dot))) {
    if (const Option* field = list->find(name.substr(dot + 1)))
      return fmt::format("# [[{}]]{}", list->section,
                         option_reference(*field, list->fresh(), /*commented=*/true));
  }
  throw UsageError(fmt::format("{}: no key or section of a job{}", name, did_you_mean(meant_by(name))));
}

std::string to_toml(const JobConfig& job) {
  const JobConfig defaults;
  return job_toml(job, [&](const Option& option) {
    const bool acts = !option.acts_when || option.acts_when->test(job);
    return acts || toml_value(option, job) != toml_value(option, defaults);
  });
}

std::string given_toml(const Document& document) {
  return job_toml(with_absolute_paths(document.as_read), [&](const Option& option) {
    const std::string name = option.name();
    return document.given(name) && !document.broken.contains(name) && !document.forgiven.contains(name);
  });
}

std::string reference_toml() {
  std::string out =
      "# Every key of a pptrain job: what it means, its type and range, and its default, which is the value "
      "shown.\n"
      "# Generated from core/config/options: pptrain config --reference > configs/reference.toml\n"
      "\n"
      "# A job file that is read first, relative to this one's folder. The keys of this file win.\n"
      "# string; not set by default\n"
      "# include = \"...\"\n";
  for (const std::string& section : sections()) out += section_reference(section);
  return out;
}

}  // namespace pptrain::config

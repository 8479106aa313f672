// From TOML to a Document. The one file that knows toml++.
#include <spdlog/fmt/fmt.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/document.h"
#include "core/config/field.h"
#include "core/config/job_paths.h"
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
  const TableList* list = find_table_list(section);
  std::vector<std::string> keys;
  for (const Option& option : list ? list->fields : options()) {
    if (option.section == section) keys.push_back(option.key);
  }
  for (const TableList& inner : table_lists()) {
    if (inner.parent() == section) keys.push_back(inner.key());
  }
  return keys;
}

bool is_section(std::string_view name) {
  return std::ranges::find(sections(), name) != sections().end();
}

std::vector<std::string> all_keys() {
  std::vector<std::string> keys;
  for (const Option& option : options()) keys.push_back(option.key);
  return keys;
}

std::string option_with_key(std::string_view key) {
  const auto found = std::ranges::find(options(), key, &Option::key);
  return found == options().end() ? "" : found->name();
}

// Keys that mean something else in each section.
constexpr std::array<std::string_view, 3> generic_keys = {"name", "match", "dropout"};

// The option that an unknown key of the section most likely means. Tries, in order: another program's name
// for it; a near key of this section; the same key in another section; a near key in another section.
// `section` may be empty. Empty if nothing is near.
std::string meant_option(std::string_view section, std::string_view key) {
  if (const std::string alias = alias_of_key(section, key); !alias.empty()) return alias;
  if (const std::string here = nearest(key, keys_of(section)); !here.empty())
    return fmt::format("{}.{}", section, here);
  if (find_table_list(section)) return "";
  if (std::ranges::find(generic_keys, to_lower(key)) != generic_keys.end()) return "";
  if (const std::string elsewhere = option_with_key(to_lower(key)); !elsewhere.empty()) return elsewhere;
  return option_with_key(nearest(key, all_keys()));
}

// The section that an unknown one most likely means. Tries, in order: another program's name for it; a near
// name; the section that has most of its keys, if that is half of them. Empty if there is none.
std::string meant_section(std::string_view name, const toml::table* table) {
  if (const std::string alias = alias_of_section(name); !alias.empty()) return alias;
  if (const std::string near = nearest(name, sections()); !near.empty()) return near;
  std::string best;
  size_t most = 0;
  for (const std::string& section : sections()) {
    size_t known = 0;
    for (const std::string& key : keys_of(section)) known += table && table->contains(key) ? 1 : 0;
    if (known > most) {
      most = known;
      best = section;
    }
  }
  return table && 2 * most >= table->size() ? best : "";
}

// "full, none" for a list of strings, "3,1" for one of numbers: what a shell user writes for a list.
std::string as_list(const std::string& value, bool of_strings) {
  std::string list = "[";
  size_t begin = 0;
  while (begin <= value.size()) {
    const size_t end = std::min(value.find(',', begin), value.size());
    const std::string element(trim(std::string_view(value).substr(begin, end - begin)));
    list += (begin > 0 ? ", " : "") + (of_strings ? toml_string(element) : element);
    begin = end + 1;
  }
  return list + "]";
}

bool is_numbers_with_commas(std::string_view text) {
  return text.find(',') != std::string_view::npos &&
         text.find_first_not_of("0123456789, ") == std::string_view::npos;
}

constexpr const char* include_key = "include";  // of the root

bool is_bool(const Option& option) {
  return std::holds_alternative<Access<bool>>(option.target) ||
         std::holds_alternative<Access<std::optional<bool>>>(option.target);
}

// "true" or "false" if a word in lower case means one; "" for others.
std::string boolean_of(std::string_view word) {
  if (has_word("true yes on", word)) return "true";
  return has_word("false no off", word) ? "false" : "";
}

// What is wrong with one value; empty if nothing.
using Fault = std::string;

// Why the option refuses this word; empty if it has no reason of its own.
std::string find_refusal(const Option& option, std::string_view word) {
  const auto found =
      std::ranges::find(option.refusals, to_lower(word), &std::pair<std::string, std::string>::first);
  return found == option.refusals.end() ? "" : found->second;
}

// Takes values from TOML into the Document. `fixed`, if set, is where everything was given (an override).
class Reader {
 public:
  // `folder`: of the file, to which paths are relative; empty: they stay as they stand.
  Reader(Document& document, std::optional<Origin> fixed, std::filesystem::path folder = {})
      : document_(document), fixed_(std::move(fixed)), folder_(std::move(folder)) {}

  void read_root(const toml::table& root) {
    for (const auto& [key, node] : root) {
      const std::string name(key.str());
      if (name == include_key) continue;  // read before
      if (!is_section(name)) {
        const std::string meant = unknown_section(name, at(key.source()), node.is_table(), node.as_table());
        read_as_meant(meant, node);
      } else if (const toml::table* table = node.as_table()) {
        read_section(name, *table);
      } else {
        add(at(node.source()), name,
            fmt::format("expected a section, [{}]; found {}", name, found_type(node)));
      }
    }
  }

  void read_section(const std::string& section, const toml::table& table) {
    if (!fixed_) document_.sections.try_emplace(section, at(table.source()));
    for (const auto& [key, node] : table) {
      const std::string name = fmt::format("{}.{}", section, key.str());
      if (const Option* option = find_option(name)) {
        read_option(*option, node);
      } else if (const TableList* list = find_table_list(name)) {
        read_list(*list, node);
      } else if (!is_section(name) && node.is_table() && !alias_of_section(name).empty()) {
        read_as_meant(unknown_section(name, at(key.source()), /*has_keys=*/true, node.as_table()), node);
      } else if (!is_section(name)) {
        unknown_key(section, std::string(key.str()), at(key.source()), &node);
      } else if (const toml::table* inner = node.as_table()) {
        read_section(name, *inner);
      } else {
        add(at(node.source()), name,
            fmt::format("expected a section, [{}]; found {}", name, found_type(node)));
      }
    }
  }

  void read_option(const Option& option, const toml::node& node) {
    forget_other_form(option);
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

  // One field of one element, which the list has.
  void read_field(const TableList& list, size_t index, const Option& field, const toml::node& node) {
    std::vector<JobConfig> elements;
    for (size_t i = 0; i < list.size(document_.job); ++i) elements.push_back(list.only(document_.job, i));
    read_value(field, fmt::format("{}[{}].{}", list.section, index, field.key), node, elements.at(index));
    list.clear(document_.job);
    for (const JobConfig& element : elements) list.append(document_.job, element);
  }

  // Returns what is most likely meant: a section or an option; empty if nothing is near. `table`: content of
  // the section, if known; `has_keys`: it is a section, not a single value.
  std::string unknown_section(const std::string& name, const Origin& origin, bool has_keys,
                              const toml::table* table = nullptr) {
    std::string meant = has_keys ? meant_section(name, table) : meant_option("", name);
    if (meant.empty()) meant = has_keys ? meant_option("", name) : meant_section(name, table);
    const std::string guess = is_section(meant) ? fmt::format("[{}]", meant) : meant;
    add(origin, name,
        meant.empty() ? fmt::format("unknown section.{}", listed("", "The sections are", sections()))
                      : "unknown section" + did_you_mean(guess));
    return meant;
  }

  // value: what it was given, if known; the option that is meant may have a word to say about it.
  void unknown_key(const std::string& section, const std::string& key, const Origin& origin,
                   const toml::node* value = nullptr) {
    const std::string title =
        find_table_list(section) ? fmt::format("[[{}]]", section) : fmt::format("[{}]", section);
    const std::string meant = meant_option(section, key);
    add(origin, fmt::format("{}.{}", section, key),
        meant.empty() ? fmt::format("unknown key.{}",
                                    listed(section, "The keys of " + title + " are", keys_of(section)))
                      : "unknown key" + did_you_mean(meant) + refusal_of(meant, value));
    stands_for(meant, origin);
  }

  // " " and the reason if the option refuses the value for a reason of its own.
  static std::string refusal_of(const std::string& name, const toml::node* value) {
    const Option* const option = find_option(name);
    const auto word = value ? value->value<std::string>() : std::nullopt;
    if (option == nullptr || !word) return "";
    const auto refusal = find_refusal(*option, *word);
    return refusal.empty() ? "" : fmt::format(" {}", refusal);
  }

  // `option` was given under a name that is reported: that it is missing, or what it holds, is no second
  // mistake.
  void stands_for(const std::string& option, const Origin& origin) {
    if (!find_option(option) || document_.given(option)) return;
    document_.options.emplace(option, origin);
    document_.broken.insert(option);
  }

 private:
  // " The keys of [train] are: steps, ...", the first time that it is asked for.
  std::string listed(const std::string& section, const std::string& lead,
                     const std::vector<std::string>& names) {
    return listed_.insert(section).second ? fmt::format(" {}: {}", lead, fmt::join(names, ", ")) : "";
  }

  // Is there another name for the field in the table, which is reported?
  static bool is_misspelt(const TableList& list, const Option& field, const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (!list.find(key.str()) && meant_option(list.section, key.str()) == field.name()) return true;
    }
    return false;
  }

  // dp or dp_shard in an override, or in a file that includes another, counts in the place of either there:
  // both say the same.
  void forget_other_form(const Option& option) {
    const std::string name = option.name();
    if (name != "distributed.dp" && name != "distributed.dp_shard") return;
    const char* const other = name == "distributed.dp" ? "distributed.dp_shard" : "distributed.dp";
    const auto given = document_.options.find(other);
    if (given == document_.options.end() || given->second.from_override) return;
    if (!fixed_ && given->second.includers == document_.includers) return;  // both in one file: reported
    document_.options.erase(given);
    document_.broken.erase(other);
    copy_value(*find_option(other), JobConfig(), document_.job);
  }

  // A section under a name that is reported is read as the one meant, so that its keys are checked, and not
  // missed.
  void read_as_meant(const std::string& meant, const toml::node& node) {
    if (is_section(meant) && node.is_table()) {
      read_section(meant, *node.as_table());
    } else {
      stands_for(meant, at(node.source()));
    }
  }

  static bool is_needless(const Option& field, const toml::table& table) {
    const auto& [key, word] = field.needless_with;
    return !key.empty() && table[key].value<std::string>() == word;
  }

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
      if (field.is_required && !table.contains(field.key) && !is_needless(field, table) &&
          !is_misspelt(list, field, table))
        add(at(table.source()), fmt::format("{}.{}", element, field.key),
            fmt::format("is required. {}", field.meaning));
    }
    list.append(document_.job, job);
  }

  // `name`: of the value in this document.
  void read_value(const Option& option, const std::string& name, const toml::node& node, JobConfig& job) {
    document_.options.insert_or_assign(name, at(node.source()));
    document_.notes.erase(name);
    fault_at_ = &node;
    const auto taken = [&]<class T>(const Access<T>& access) {
      T value{};
      Fault fault = take(option, node, value);
      if constexpr (std::is_same_v<T, std::string>) place(option, name, value);
      if constexpr (std::is_same_v<T, std::vector<std::string>>)
        for (std::string& path : value) place(option, name, path);
      if (fault.empty()) access(job) = std::move(value);
      return fault;
    };
    const Fault fault = std::visit(taken, option.target);
    if (fault.empty()) {
      document_.broken.erase(name);
    } else {
      document_.broken.insert(name);
      add(at(fault_at_->source()), name, fault);
    }
  }

  // A path to read becomes one beside the file, or stays one in the current directory, which is noted.
  void place(const Option& option, const std::string& name, std::string& path) {
    if (option.names != Names::read || !option.is_path(path)) return;
    const std::string given = path;
    std::error_code error;
    path = beside_job(folder_, given);
    if (path == given && !folder_.empty() && std::filesystem::path(given).is_relative() &&
        std::filesystem::exists(given, error) && !std::filesystem::equivalent(folder_, ".", error))
      document_.notes.emplace(
          name, fmt::format("{} = {} is in the current directory; beside {} there is none", name,
                            toml_string(given), document_.file));
  }

  Origin at(const toml::source_region& tp) const {
    if (fixed_) return *fixed_;
    return {.where = fmt::format("{}:{}:{}", document_.file, tp.begin.line, tp.begin.column),
            .includers = document_.includers,
            .line = tp.begin.line,
            .column = tp.begin.column};
  }

  void add(const Origin& origin, std::string_view name, std::string_view text) {
    document_.problems.push_back({origin, std::string(name), std::string(text)});
  }

  static Fault wrong_type(const Option& option, const toml::node& node) {
    return fmt::format("wrong type: expected {}; found {}", type_name(option), found_type(node));
  }

  // Each take() fills `out`, which holds nothing yet.
  Fault take(const Option& option, const toml::node& node, bool& out) const {
    if (const auto* word = node.as_string())
      return wrong_type(option, node) + did_you_mean(boolean_of(to_lower(word->get())));
    if (!node.is_boolean()) return wrong_type(option, node);
    out = node.as_boolean()->get();
    return "";
  }

  Fault take(const Option& option, const toml::node& node, int64_t& out) const {
    if (!node.is_integer()) return wrong_type(option, node);
    out = node.as_integer()->get();
    return range_fault(option, static_cast<double>(out), fmt::format("{}", out));
  }

  Fault take(const Option& option, const toml::node& node, double& out) const {
    if (!node.is_number()) return wrong_type(option, node);
    out = node.is_integer() ? static_cast<double>(node.as_integer()->get()) : node.as_floating_point()->get();
    return range_fault(option, out, fmt::format("{}", out));
  }

  template <class T>
  Fault take(const Option& option, const toml::node& node, std::optional<T>& out) const {
    const auto* word = node.as_string();
    if (word && !option.unset_word.empty() && to_lower(word->get()) == option.unset_word) return "";
    return take(option, node, out.emplace());
  }

  Fault take(const Option& option, const toml::node& node, std::string& out) const {
    if (!node.is_string()) return wrong_type(option, node);
    out = node.as_string()->get();
    if (out.find('\0') != std::string::npos) return "holds a NUL character";
    if (option.is_required && out.empty()) return "is required, and may not be empty";
    return option.literals.empty() ? "" : take_literal(option, out);
  }

  // "cheap:2/full:3".
  static bool is_in_runs(const Option& option, std::string_view text) {
    const auto runs = parse_runs(text);
    return runs && std::ranges::all_of(*runs, [&](const auto& run) {
             return run.first != option.alone &&
                    std::ranges::find(option.literals, run.first) != option.literals.end();
           });
  }

  static Fault take_literal(const Option& option, std::string& text) {
    const std::string given = text;
    const auto literal = std::ranges::find(option.literals, to_lower(given),
                                           [](const std::string& word) { return to_lower(word); });
    if (literal != option.literals.end()) {
      text = *literal;
      return "";
    }
    if (option.in_runs && is_in_runs(option, to_lower(given))) {
      text = to_lower(given);
      return "";
    }
    if (const std::string reason = find_refusal(option, given); !reason.empty())
      return fmt::format("{} (valid: {})", reason, fmt::join(option.literals, ", "));
    const std::string alias = alias_of_value(option.name(), given);
    const std::string meant = alias.empty() ? nearest(given, option.literals) : alias;
    return fmt::format("{} is not a valid value{} Valid: {}", toml_string(given),
                       meant.empty() ? "." : did_you_mean(toml_string(meant)),
                       fmt::join(option.literals, ", "));
  }

  Fault take(const Option& option, const toml::node& node, std::vector<std::string>& out) {
    if (!node.is_string()) return take<std::string>(option, node, out);
    const Fault fault = take(option, node, out.emplace_back());
    if (out.front().empty()) out.clear();
    return fault;
  }

  // What a string says is checked with the schedule.
  Fault take(const Option& option, const toml::node& node, PipelineSplit& out) {
    out.text = node.value_or(std::string());
    if (!node.is_string()) return take(option, node, out.layers);
    if (!is_numbers_with_commas(out.text)) return "";
    return fmt::format("{} is one string: write a list, {}", toml_string(out.text),
                       as_list(out.text, /*of_strings=*/false));
  }

  template <class T>
  Fault take(const Option& option, const toml::node& node, std::vector<T>& out) {
    const toml::array* array = node.as_array();
    if (!array) return wrong_type(option, node);
    if (array->empty() && !option.may_be_empty)
      return fmt::format("an empty list; expected {}", type_name(option));
    for (const toml::node& element : *array) {
      const Fault fault = take(option, element, out.emplace_back());
      if (fault.empty()) continue;
      fault_at_ = &element;
      return fault;
    }
    return !option.length || out.size() == *option.length
               ? ""
               : fmt::format("a list of {}; expected a {}", out.size(), type_name(option));
  }

  Document& document_;
  std::optional<Origin> fixed_;
  std::filesystem::path folder_;
  std::set<std::string> listed_;          // sections whose keys a message has listed
  const toml::node* fault_at_ = nullptr;  // the value, or the element of a list, that a fault lies in
};

// One TOML value, as the table {v = value}; nothing if it is not one.
std::optional<toml::table> parse_value(const std::string& value) {
  try {
    toml::table table = toml::parse("v = " + value);
    return table.size() == 1 && table.contains("v") ? std::optional(std::move(table)) : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Does the option take a list that `value` gives without brackets? "0.9,0.95", "3,1", "full,none".
bool is_bare_list(const std::string& value, const Option& option) {
  if (value.find(',') == std::string::npos || value.find_first_of("[\"'") != std::string::npos) return false;
  const bool split = std::holds_alternative<Access<PipelineSplit>>(option.target);
  return split ? is_numbers_with_commas(value)
               : std::holds_alternative<Access<std::vector<double>>>(option.target) ||
                     std::holds_alternative<Access<std::vector<int64_t>>>(option.target) ||
                     std::holds_alternative<Access<std::vector<std::string>>>(option.target);
}

// In TOML, or a bare word; what is meant for a string is one in any case, so that run.dir=2024 works, and
// what is meant for a list needs no brackets.
std::optional<toml::table> parse_override(const std::string& value, const Option* option) {
  std::optional<toml::table> parsed = parse_value(value);
  const bool wants_list = option && std::holds_alternative<Access<std::vector<std::string>>>(option->target);
  const bool wants_string = option && std::holds_alternative<Access<std::string>>(option->target);
  const toml::node* const value_node = parsed ? parsed->get("v") : nullptr;
  const bool fits = value_node && (wants_list ? value_node->is_string() || value_node->is_array()
                                              : !wants_string || value_node->is_string());
  if (fits) return parsed;
  if (option && is_bare_list(value, *option)) {
    const bool of_strings = std::holds_alternative<Access<std::vector<std::string>>>(option->target);
    if (std::optional<toml::table> list = parse_value(as_list(value, of_strings))) return list;
  }
  return parse_value(toml_string(value));
}

// "data.sources[1].weight" or "data.sources.1.weight", taken apart; nothing unless it is of a list of tables.
struct ElementKey {
  const TableList* list = nullptr;
  size_t index = 0;
  std::string key;  // "": all of the element
};

std::optional<ElementKey> element_key(const std::string& name) {
  static const std::regex form(R"((.+?)(?:\[(\d{1,18})\]|\.(\d{1,18}))(?:\.(.*))?)");
  std::smatch found;
  if (!std::regex_match(name, found, form)) return std::nullopt;
  const TableList* list = find_table_list(found.str(1));
  if (list == nullptr) return std::nullopt;
  return ElementKey{list, std::stoul(found.str(2) + found.str(3)), found.str(4)};
}

// What is wrong with the element that is named; empty if it is there.
std::string fault_of(const ElementKey& element, const JobConfig& job) {
  const std::string& list = element.list->section;
  const size_t size = element.list->size(job);
  if (size == 0) return fmt::format("the job has no [[{}]]", list);
  if (element.index >= size)
    return fmt::format("{0} has {1} element{2}, {0}[0] to {0}[{3}]", list, size, size == 1 ? "" : "s",
                       size - 1);
  if (!element.key.empty()) return "";
  return fmt::format("names a table; expected {}[{}].key=value, with a key of: {}", list, element.index,
                     fmt::join(keys_of(list), ", "));
}

// What is wrong with a name that is a section, or a key of a list of tables; empty if it is neither.
std::string fault_of(const std::string& name, const std::string& section) {
  if (is_section(name))
    return fmt::format("names a section; expected {}.key=value, with a key of: {}", name,
                       fmt::join(keys_of(name), ", "));
  if (find_table_list(section) == nullptr) return "";
  return fmt::format(
      "{0} is a list of tables: give all of it, {0}=[{{...}}, ...], or a key of one, {0}[0].{1}=...", section,
      name.substr(name.rfind('.') + 1));
}

constexpr char command_mark = '\x1e';  // before an override that a command adds

// Reports an override's name that takes no value.
void refuse_name(Document& document, Reader& reader, const std::string& name, const toml::node& value,
                 const Origin& origin) {
  const size_t dot = name.rfind('.');
  const std::string section = name.substr(0, dot == std::string::npos ? 0 : dot);
  if (const std::string fault = fault_of(name, section); !fault.empty()) {
    document.problems.push_back({origin, "", fault});
  } else if (is_section(section)) {
    reader.unknown_key(section, name.substr(dot + 1), origin, &value);
  } else {
    const std::string meant =
        reader.unknown_section(section.empty() ? name : section, origin, /*has_keys=*/!section.empty());
    reader.stands_for(is_section(meant) ? fmt::format("{}.{}", meant, name.substr(dot + 1)) : meant, origin);
  }
}

void read_override(Document& document, const std::string& text, const Origin& origin) {
  const auto refuse = [&](const std::string& reason) { document.problems.push_back({origin, "", reason}); };
  const size_t equals = text.find('=');
  const std::string name(trim(text.substr(0, equals)));
  if (equals == std::string::npos || name.empty()) return refuse("expected section.key=value");
  Reader reader(document, origin);
  const std::optional<ElementKey> element = element_key(name);
  const Option* option = element ? element->list->find(element->key) : find_option(name);
  const std::optional<toml::table> parsed =
      parse_override(std::string(trim(text.substr(equals + 1))), option);
  if (!parsed) return refuse("the value is not UTF-8 text");
  const toml::node& node = *parsed->get("v");
  if (element) {
    const std::string fault = fault_of(*element, document.job);
    if (!fault.empty()) return refuse(fault);
    if (!option) return reader.unknown_key(element->list->section, element->key, origin);
    reader.read_field(*element->list, element->index, *option, node);
  } else if (option) {
    reader.read_option(*option, node);
  } else if (const TableList* list = find_table_list(name)) {
    reader.read_list(*list, node);
  } else if (is_section(name) && node.is_table()) {
    reader.read_section(name, *node.as_table());
  } else {
    refuse_name(document, reader, name, node, origin);
  }
}

void read_override(Document& document, const std::string& text) {
  if (!text.starts_with(command_mark))
    return read_override(document, text, {.where = "--set " + text, .from_override = true});
  const std::string setting = text.substr(1), option(trim(setting.substr(0, setting.find('='))));
  const auto given = document.options.find(option);
  const auto by_user = given == document.options.end() ? std::nullopt : std::optional(given->second);
  read_override(document, setting, {.where = document.file});
  document.options.erase(option);
  if (by_user) document.options.emplace(option, *by_user);
  document.filled.insert(option);
}

// Matches a line `key = word` whose word begins like a name or a path: the commonest slip, which the parser
// takes for a value of another type. Nothing for any other line.
std::optional<std::smatch> word_without_quotes(const std::string& line) {
  static const std::regex form(R"(\s*([\w.-]+)\s*=\s*([A-Za-z/~._][\w./~ -]*?)\s*(#.*)?)");
  constexpr size_t longest = 300;
  std::smatch found;
  return line.size() <= longest && std::regex_match(line, found, form) ? std::optional(found) : std::nullopt;
}

// What a word without quotes stands for, by the options that have this key: true or false, a word of theirs,
// nothing at all, else a text.
std::string advice_on_word(const std::string& key, const std::string& word) {
  const std::string lower = to_lower(word);
  const auto of_key = [&](const auto& fits) {
    return std::ranges::any_of(options(), [&](const Option& o) { return o.key == key && fits(o); });
  };
  const auto has_lower = [&](const Option& option) {
    return std::ranges::find(option.literals, lower) != option.literals.end() ||
           std::ranges::find(option.known_words, lower) != option.known_words.end() ||
           option.unset_word == lower;
  };
  if (of_key(has_lower)) return fmt::format("a string needs quotes: {} = {}", key, toml_string(lower));
  const std::string boolean = boolean_of(lower);
  const bool is_python = word == "True" || word == "False";
  if (!boolean.empty() && (is_python || of_key(is_bool)))
    return fmt::format("TOML writes {0} in lower case: {1} = {0}", boolean, key);
  if (lower == "none" || lower == "null" || lower == "nil")
    return fmt::format("TOML has no {0}: leave {1} out, and its default counts", word, key);
  return fmt::format("a string needs quotes: {} = {}", key, toml_string(word));
}

// Column (from 0) of a string that does not end in its line; nothing if all strings end.
std::optional<size_t> unclosed_string(const std::string& line) {
  for (size_t i = 0; i < line.size() && line[i] != '#'; ++i) {
    const char quote = line[i];
    if (quote != '"' && quote != '\'') continue;
    if (line.compare(i, 3, std::string(3, quote)) == 0) return std::nullopt;  // of several lines, or empty
    const size_t begin = i;
    for (++i; i < line.size() && line[i] != quote; ++i) {
      if (line[i] == '\\' && quote == '"') ++i;
    }
    if (i >= line.size()) return begin;
  }
  return std::nullopt;
}

// What is wrong with a text that is no TOML, with its place.
std::string describe_fault(const std::string& text, const std::string& file, const toml::parse_error& error) {
  const toml::source_position begin = error.source().begin;
  std::istringstream lines(text);
  std::string line, before;
  for (uint32_t i = 0; i < begin.line && std::getline(lines, line); ++i) {
    if (i + 1 < begin.line) before = line;
  }
  // The parser may go on into the next line. A text of several lines may hold any quotes.
  const bool in_long_text = text.find("\"\"\"") != text.npos || text.find("'''") != text.npos;
  for (const auto& [number, of] : {std::pair(begin.line, line), std::pair(begin.line - 1, before)}) {
    if (const auto open = in_long_text ? std::nullopt : unclosed_string(of))
      return fmt::format("{}:{}:{}: this string has no closing {}", file, number, *open + 1, of[*open]);
  }
  if (const auto slip = word_without_quotes(line))
    return fmt::format("{}:{}:{}: {}", file, begin.line, slip->position(2) + 1,
                       advice_on_word(slip->str(1), slip->str(2)));
  return fmt::format("{}:{}:{}: not valid TOML: {}", file, begin.line, begin.column, error.description());
}

toml::table parse_toml(const std::string& text, const std::string& file) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw UsageError(describe_fault(text, file, error));
  }
}

// Reads the file, after the one that it includes, whose keys give way to its own. `outer`: the files that
// include it, one another. `places`: paths are relative to the file.
void read_file(Document& document, const std::string& text, const std::string& file, bool places,
               std::vector<std::string> outer) {
  const toml::table root = parse_toml(text, file);
  const auto includers = static_cast<int>(outer.size());
  if (const toml::node* const include = root.get(include_key)) {
    const auto where = [&] {
      return fmt::format("{}:{}:{}: include", file, include->source().begin.line,
                         include->source().begin.column);
    };
    if (!include->is_string())
      throw UsageError(fmt::format("{}: expected a job file, include = \"base.toml\"; found {}", where(),
                                   found_type(*include)));
    const auto path = std::filesystem::path(file).parent_path() / include->as_string()->get();
    const std::string base = path.lexically_normal().string();
    outer.push_back(std::filesystem::path(file).lexically_normal().string());
    if (std::ranges::find(outer, base) != outer.end())
      throw UsageError(
          fmt::format("{}: the files include each other: {} -> {}", where(), fmt::join(outer, " -> "), base));
    try {
      read_file(document, read_job_file(base), base, places, std::move(outer));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}\n{}: is read for it", error.what(), where()));
    }
  }
  document.file = file;
  document.includers = includers;
  Reader(document, std::nullopt, places ? std::filesystem::path(file).parent_path() : "").read_root(root);
}

Document read(const std::string& text, const std::string& file, bool places,
              std::span<const std::string> overrides) {
  Document document;
  read_file(document, text, file, places, {});
  for (const std::string& override_text : overrides) read_override(document, override_text);
  for (const Option& option : options()) {
    const auto& [key, word] = option.needless_with;
    const bool needless = !key.empty() && toml_value(*find_option(option.section + "." + key),
                                                     document.job) == toml_string(word);
    if (option.is_required && !needless && !document.given(option.name()) &&
        !document.given(option.instead)) {
      document.report(option.name(), fmt::format("is required. {}", option.meaning));
      document.broken.insert(option.name());
    }
  }
  document.as_read = document.job;
  return document;
}

}  // namespace

std::string by_command(const std::string& setting) {
  return command_mark + setting;
}

Document read_document(const std::string& text, const std::string& file,
                       std::span<const std::string> overrides) {
  return read(text, file, /*places=*/true, overrides);
}

Document read_document_inside(const std::string& text, const std::string& name) {
  return read(text, name, /*places=*/false, {});
}

}  // namespace pptrain::config

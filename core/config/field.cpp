#include "core/config/field.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "core/config/families.h"
#include "core/config/nearest.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

std::string format_value(const auto& value) {  // bool, int64_t
  return fmt::format("{}", value);
}
std::string format_value(const std::string& value) {
  return toml_string(value);
}

// The shortest digits that read back to the same double, told apart from an integer.
std::string format_value(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

template <class T>
std::string format_value(const std::vector<T>& values) {
  std::string text = "[";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + format_value(value);
  return text + "]";
}

std::string list_name(const Option& option, std::string_view elements) {
  return option.length ? fmt::format("list of {} {}", *option.length, elements)
                       : fmt::format("list of {}", elements);
}

struct TypeName {
  const Option& option;
  std::string operator()(const Access<bool>&) const { return "true or false"; }
  std::string operator()(const Access<int64_t>&) const { return "integer"; }
  std::string operator()(const Access<double>&) const { return "float"; }
  template <class T>
  std::string operator()(const Access<std::optional<T>>&) const {
    return (*this)(Access<T>());
  }
  std::string operator()(const Access<PipelineSplit>&) const { return "string or list of integers"; }
  std::string operator()(const Access<std::vector<double>>&) const { return list_name(option, "floats"); }
  std::string operator()(const Access<std::vector<int64_t>>&) const { return list_name(option, "integers"); }
  std::string operator()(const Access<std::vector<std::string>>&) const {
    return fmt::format("{}, or list", (*this)(Access<std::string>()));
  }
  std::string operator()(const Access<std::string>&) const {
    return option.literals.empty() ? "string" : fmt::format("one of: {}", fmt::join(option.literals, ", "));
  }
};

}  // namespace

bool Range::contains(double value) const {
  return std::isfinite(value) && !(min && (value < *min || (min_open && value == *min))) &&
         !(max && (value > *max || (max_open && value == *max)));
}

std::string Range::describe() const {
  if (min && max) {
    return fmt::format("{} {} x {} {}", *min, min_open ? "<" : "<=", max_open ? "<" : "<=", *max);
  }
  if (min) return fmt::format("{} {}", min_open ? ">" : ">=", *min);
  return max ? fmt::format("{} {}", max_open ? "<" : "<=", *max) : "";
}

bool Option::is_path(const std::string& value) const {
  return names != Names::nothing && !value.empty() && to_lower(value).ends_with(path_ending) &&
         std::ranges::find(known_words, value) == known_words.end();
}

Option& Option::refuse(std::string literal, std::string reason) {
  refusals.emplace_back(std::move(literal), std::move(reason));
  return *this;
}

Option& Option::only_with(std::string other, std::vector<std::string> values) {
  std::string words = fmt::format("{} = {}", other, fmt::join(values, " or "));
  const auto holds = [other, values = std::move(values)](const JobConfig& job) {
    const std::string value = toml_value(*find_option(other), job).value_or("unset");
    return std::ranges::any_of(values,
                               [&](const std::string& v) { return value == v || value == toml_string(v); });
  };
  return only_if(std::move(words), {std::move(other)}, holds);
}

Option& Option::of_families() {
  return only_with("model.arch", families_with(key));
}

Option& Option::unless_given_as(std::string value) {
  acts_when->harmless = std::move(value);
  return *this;
}

const Option* TableList::find(std::string_view field) const {
  const auto found = std::ranges::find(fields, field, &Option::key);
  return found == fields.end() ? nullptr : &*found;
}

std::string type_name(const Option& option) {
  const std::string type = std::visit(TypeName{option}, option.target);
  return option.unset_word.empty() ? type : fmt::format("{} or {}", type, toml_string(option.unset_word));
}

std::optional<std::string> toml_value(const Option& option, const JobConfig& job) {
  JobConfig copy = job;  // an Access gives a mutable reference
  return std::visit(
      [&]<class T>(const Access<T>& access) -> std::optional<std::string> {
        const T& value = access(copy);
        if constexpr (std::is_same_v<T, std::optional<int64_t>> || std::is_same_v<T, std::optional<bool>> ||
                      std::is_same_v<T, std::optional<double>>) {
          if (value) return format_value(*value);
          return option.unset_word.empty() ? std::nullopt : std::optional(toml_string(option.unset_word));
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          if (value.empty()) return std::nullopt;
          return value.size() == 1 ? toml_string(value.front()) : format_value(value);
        } else if constexpr (std::is_same_v<T, PipelineSplit>) {
          return value.layers.empty() ? toml_string(value.text) : format_value(value.layers);
        } else {
          return format_value(value);
        }
      },
      option.target);
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string range_fault(const Option& option, double value, const std::string& shown) {
  if (option.range.contains(value)) return "";
  const std::string allowed = option.range.describe();
  return fmt::format("{} is out of range; allowed: {}", shown,
                     allowed.empty() ? "any finite number" : allowed);
}

std::string range_fault(const Option& option, const JobConfig& job) {
  JobConfig copy = job;  // an Access gives a mutable reference
  const auto fault = [&](auto number) {
    return range_fault(option, static_cast<double>(number), fmt::format("{}", number));
  };
  return std::visit(
      [&]<class T>(const Access<T>& access) -> std::string {
        [[maybe_unused]] const T& value = access(copy);
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
          return fault(value);
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                             std::is_same_v<T, std::vector<double>>) {
          for (const auto number : value) {
            if (std::string text = fault(number); !text.empty()) return text;
          }
        }
        return "";
      },
      option.target);
}

void copy_value(const Option& option, const JobConfig& from, JobConfig& to) {
  JobConfig copy = from;
  std::visit([&](const auto& access) { access(to) = access(copy); }, option.target);
}

}  // namespace pptrain::config

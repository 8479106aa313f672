// What an option of the job file is, and the few words with which options.cpp declares one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::config {

// Where a value lives in a job.
template <class T>
using Access = std::function<T&(JobConfig&)>;

// The alternatives are the types that an option can have. A list of strings may be given as its only one.
using Target =
    std::variant<Access<bool>, Access<int64_t>, Access<double>, Access<std::string>,
                 Access<std::optional<bool>>, Access<std::optional<int64_t>>, Access<std::vector<double>>,
                 Access<std::vector<std::string>>, Access<PipelineSplit>>;

// The numbers allowed; for a list, of each of its elements. NaN and infinities are never allowed.
struct Range {
  std::optional<double> min;
  std::optional<double> max;
  bool min_open = false;  // min itself is not allowed
  bool max_open = false;

  bool contains(double value) const;
  std::string describe() const;  // ">= 1", "0 <= x < 1"; empty if every number is allowed
};

// The option acts only while the option called `key` has one of `values`.
struct Condition {
  std::string key;
  std::vector<std::string> values;

  std::string describe() const;  // "data.format = bin"
};

// One option: declared once in options.cpp, from which the loader, to_toml, the reference and the schema
// derive. The setters return the option, so that a declaration is one expression.
struct Option {
  std::string section;  // "train", "model.rope_scaling"
  std::string key;
  std::string meaning;  // sentences
  Target target;
  Range range;
  std::vector<std::string> literals;  // of a string or a list of them: the only ones allowed, if not empty
  std::vector<std::pair<std::string, std::string>> refusals;  // literals refused for a reason of their own
  std::optional<size_t> length;                               // of a list
  std::optional<Condition> acts_when;
  bool ignores_case = false;  // a literal in other case is taken as the one declared
  bool is_required = false;

  std::string name() const { return section + "." + key; }

  Option& at_least(double value);
  Option& above(double value);
  Option& between(double low, double high);     // both allowed
  Option& from_up_to(double low, double high);  // low allowed, high not
  Option& above_up_to(double low, double high);
  Option& one_of(std::vector<std::string> values);
  Option& refuse(std::string literal, std::string reason);
  Option& any_case();
  Option& of_length(size_t count);
  Option& required();
  Option& only_with(std::string other_name, std::vector<std::string> values);
};

// Declares the options of one section, whose struct is found by `access`.
template <class Section>
class SectionFields {
 public:
  SectionFields(std::vector<Option>& options, std::string section, Access<Section> access)
      : options_(options), section_(std::move(section)), access_(std::move(access)) {}

  // The reference serves until the next option is declared.
  template <class T>
  Option& add(std::string key, T Section::*member, std::string meaning) {
    Option option;
    option.section = section_;
    option.key = std::move(key);
    option.meaning = std::move(meaning);
    option.target =
        Access<T>([access = access_, member](JobConfig& job) -> T& { return access(job).*member; });
    return options_.emplace_back(std::move(option));
  }

 private:
  std::vector<Option>& options_;
  std::string section_;
  Access<Section> access_;
};

// "integer", "list of 2 floats", "one of: bf16, fp32", "string or list of integers".
std::string type_name(const Option& option);

// The option's value in `job`, written as TOML; nothing for an optional that is unset.
std::optional<std::string> toml_value(const Option& option, const JobConfig& job);

// `text` as a TOML basic string, quotes included.
std::string toml_string(std::string_view text);

// Copies the option's value, from one job to another.
void copy_value(const Option& option, const JobConfig& from, JobConfig& to);

}  // namespace pptrain::config

// What an option of the job file is, and the few words with which options/ declares one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
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
                 Access<std::optional<bool>>, Access<std::optional<int64_t>>, Access<std::optional<double>>,
                 Access<std::vector<double>>, Access<std::vector<int64_t>>, Access<std::vector<std::string>>,
                 Access<PipelineSplit>>;

// The numbers allowed; for a list, of each of its elements. NaN and infinities are never allowed.
struct Range {
  std::optional<double> min = {}, max = {};
  bool min_open = false, max_open = false;  // the bound itself is not allowed

  bool contains(double value) const;
  std::string describe() const;  // ">= 1", "0 <= x < 1"; empty if every number is allowed
};

// The option acts only while `test` holds.
struct Condition {
  std::string words;              // that describe it in messages: "data.format = bin"
  std::vector<std::string> keys;  // all that the test looks at, the one to change first
  std::function<bool(const JobConfig&)> test;
  // As TOML: the value besides the default that the option may be given all the same, since it says what is
  // done anyway. Empty: none.
  std::string harmless = {};
};

// What an option decides, as far as a run that goes on from a checkpoint is concerned. A run's results come
// from one model on one order of samples: an option that decides either may not change unseen.
enum class Effect {
  model,   // what the stored weights and optimizer states mean
  data,    // which samples come in which order
  course,  // how training goes on from here
  layout,  // where and in which pieces it is computed, and how many samples a step takes
  none,    // nothing that a run computes after it has started
};

// Whether a string, or each of a list, names files. What a job reads is relative to its file, else to the
// current directory; what it writes, which need not exist yet, to the current directory (job_paths.h).
enum class Names { nothing, read, written };

// One option: declared once in options/, from which the loader, to_toml, the reference and the schema
// derive. The setters return the option, so that a declaration is one expression.
struct Option {
  std::string section;  // "train", "model.rope_scaling"
  std::string key;
  std::string meaning;  // sentences
  Target target;
  Range range;
  // For a string or a list of strings: the only values allowed, if not empty, in any case of letters.
  std::vector<std::string> literals;
  std::string unset_word;                // of an optional: the word that leaves it unset, "auto"
  std::string alone;                     // of a list: a literal that stands for all of it, or is not there
  bool in_runs = false;                  // literals but `alone` may also stand in runs: "cheap:2/full:3"
  std::vector<std::string> known_words;  // of a string: values to propose, among others that are allowed
  std::vector<std::pair<std::string, std::string>> refusals;  // literals refused for a reason of their own
  std::optional<size_t> length;                               // of a list
  std::optional<Condition> acts_when;
  Effect effect = Effect::course;
  Names names = Names::nothing;  // known_words name none
  std::string path_ending = {};  // ending of values that name a file, if others do not: ".csv"
  bool is_required = false;
  std::string instead;  // a list of tables: if it is given, a required option may be missing
  // A key of the same section and one of its words: with that word a required option may be missing.
  std::pair<std::string, std::string> needless_with;
  bool may_be_empty = false;  // a list

  std::string name() const { return section + "." + key; }

  Option& at_least(double value) { return set(&Option::range, {.min = value}); }
  Option& above(double value) { return set(&Option::range, {.min = value, .min_open = true}); }
  Option& between(double low, double high) { return set(&Option::range, {.min = low, .max = high}); }
  Option& from_up_to(double low, double high) {
    return set(&Option::range, {.min = low, .max = high, .max_open = true});
  }
  Option& above_up_to(double low, double high) {
    return set(&Option::range, {.min = low, .max = high, .min_open = true});
  }
  Option& one_of(std::vector<std::string> values) { return set(&Option::literals, std::move(values)); }
  Option& unset_as(std::string word) { return set(&Option::unset_word, std::move(word)); }
  Option& alone_in_list(std::string literal) { return set(&Option::alone, std::move(literal)); }
  Option& or_runs() { return set(&Option::in_runs, true); }
  Option& such_as(std::vector<std::string> values) { return set(&Option::known_words, std::move(values)); }
  Option& refuse(std::string literal, std::string reason);
  Option& of_length(size_t count) { return set(&Option::length, count); }
  Option& or_empty() { return set(&Option::may_be_empty, true); }
  Option& required() { return set(&Option::is_required, true); }
  Option& required_unless(std::string list) { return set(&Option::instead, std::move(list)).required(); }
  Option& needless(std::string with_key, std::string word) {
    return set(&Option::needless_with, {std::move(with_key), std::move(word)});
  }
  Option& decides(Effect what) { return set(&Option::effect, what); }
  Option& path(Names what = Names::read, std::string ending = {}) {
    return set(&Option::path_ending, std::move(ending)).set(&Option::names, what);
  }
  // Is this value of the option, or one of its list, the name of a file?
  bool is_path(const std::string& value) const;
  // While the option called `other` has one of these values.
  Option& only_with(std::string other, std::vector<std::string> values);
  Option& of_families();  // that take this key (families.h)
  Option& only_if(std::string words, std::vector<std::string> keys,
                  std::function<bool(const JobConfig&)> test) {
    return set(&Option::acts_when, Condition{std::move(words), std::move(keys), std::move(test)});
  }
  Option& unless_given_as(std::string value);  // after only_if: Condition::harmless

 private:
  template <class T>
  Option& set(T Option::*field, std::type_identity_t<T> value) {
    this->*field = std::move(value);
    return *this;
  }
};

// Declares the options of one section, whose struct is found by `access`; they decide `effect`, unless they
// say otherwise.
template <class Section>
class SectionFields {
 public:
  SectionFields(std::vector<Option>& options, std::string section, Access<Section> access,
                Effect effect = Effect::course)
      : options_(options), section_(std::move(section)), access_(std::move(access)), effect_(effect) {}

  // Declares one. The reference serves until the next one is declared.
  template <class T>
  Option& operator()(std::string key, T Section::*member, std::string meaning) const {
    return add<T>(std::move(key), std::move(meaning),
                  [access = access_, member](JobConfig& job) -> T& { return access(job).*member; });
  }
  // For an enum: its words are the only values.
  template <class E>
  Option& operator()(std::string key, Word<E> Section::*member, std::string meaning) const {
    return add<std::string>(std::move(key), std::move(meaning),
                            [access = access_, member](JobConfig& job) -> std::string& {
                              return (access(job).*member).text;
                            })
        .one_of(words_of<E>());
  }
  Option& operator()(std::string key, Recomputation Section::*member, std::string meaning) const {
    return add<std::vector<std::string>>(
        std::move(key), std::move(meaning),
        [access = access_, member](JobConfig& job) -> std::vector<std::string>& {
          return (access(job).*member).words;
        });
  }

  // The same section for options that share a condition (Option::only_with, Option::only_if).
  SectionFields only_with(std::string other, std::vector<std::string> values) const {
    return acting(Option().only_with(std::move(other), std::move(values)));
  }
  SectionFields only_if(std::string words, std::vector<std::string> keys,
                        std::function<bool(const JobConfig&)> test) const {
    return acting(Option().only_if(std::move(words), std::move(keys), std::move(test)));
  }

 private:
  template <class T>
  Option& add(std::string key, std::string meaning, Access<T> target) const {
    Option option;
    option.section = section_;
    option.key = std::move(key);
    option.meaning = std::move(meaning);
    option.acts_when = acts_when_;
    option.effect = effect_;
    option.target = std::move(target);
    return options_.emplace_back(std::move(option));
  }
  SectionFields acting(const Option& as) const {
    SectionFields fields = *this;
    fields.acts_when_ = as.acts_when;
    return fields;
  }

  std::vector<Option>& options_;
  std::string section_;
  Access<Section> access_;
  Effect effect_;
  std::optional<Condition> acts_when_;
};

// A list of tables, [[section]] in TOML: [[optimizer.groups]]. Its fields are options that live in the one
// element of a job whose list has exactly one, so that all that is known of options holds for them too.
struct TableList {
  std::string section;
  std::string meaning;
  bool decides_by_field = false;  // each field decides what it says itself (Effect), not the list as a whole
  std::vector<Option> fields;

  std::function<size_t(const JobConfig&)> size;
  std::function<JobConfig(const JobConfig&, size_t)> only;           // a job with just this element
  std::function<JobConfig()> fresh;                                  // a job with just a new one
  std::function<void(JobConfig& to, const JobConfig& from)> append;  // the one element of `from`
  std::function<void(JobConfig&)> clear;

  std::string parent() const { return section.substr(0, section.rfind('.')); }
  std::string key() const { return section.substr(section.rfind('.') + 1); }
  const Option* find(std::string_view field) const;
};

template <class Element>
TableList make_table_list(std::string section, std::string meaning, Access<std::vector<Element>> elements) {
  TableList list;
  list.section = std::move(section);
  list.meaning = std::move(meaning);
  list.fresh = [elements] {
    JobConfig job;
    elements(job).resize(1);
    return job;
  };
  list.size = [elements](const JobConfig& job) {
    JobConfig copy = job;
    return elements(copy).size();
  };
  list.only = [elements](const JobConfig& job, size_t index) {
    JobConfig copy = job;
    elements(copy) = {elements(copy).at(index)};
    return copy;
  };
  list.append = [elements](JobConfig& to, const JobConfig& from) {
    JobConfig copy = from;
    elements(to).push_back(elements(copy).front());
  };
  list.clear = [elements](JobConfig& job) { elements(job).clear(); };
  return list;
}

// "integer", "list of 2 floats", "one of: bf16, fp32", "string or list of integers".
std::string type_name(const Option& option);

// The option's value in `job`, written as TOML; nothing for an optional that is unset.
std::optional<std::string> toml_value(const Option& option, const JobConfig& job);

// `text` as a TOML basic string, quotes included.
std::string toml_string(std::string_view text);

// What is wrong with a number as the option's value, or as one of its list: "0 is out of range; allowed:
// 1 <= x <= 8"; empty if nothing. `shown`: the number as the user wrote it.
std::string range_fault(const Option& option, double value, const std::string& shown);

// The same of the option's value in `job`: the first number out of range.
std::string range_fault(const Option& option, const JobConfig& job);

// Copies the option's value, from one job to another.
void copy_value(const Option& option, const JobConfig& from, JobConfig& to);

}  // namespace pptrain::config

#include "core/config/differences.h"

#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <optional>

#include "core/config/document.h"
#include "core/config/job_paths.h"
#include "core/config/options.h"

namespace pptrain::config {
namespace {

std::string value_text(const Option& option, const JobConfig& job) {
  return toml_value(option, job).value_or("not set");
}

// [{match = "*.norm*", lr_scale = 2.0}]
std::string list_text(const TableList& list, const JobConfig& job) {
  std::string text;
  for (size_t i = 0; i < list.size(job); ++i) {
    const JobConfig element = list.only(job, i);
    std::string fields;
    for (const Option& field : list.fields) {
      if (const std::optional<std::string> value = toml_value(field, element))
        fields += fmt::format("{}{} = {}", fields.empty() ? "" : ", ", field.key, *value);
    }
    text += fmt::format("{}{{{}}}", text.empty() ? "" : ", ", fields);
  }
  return fmt::format("[{}]", text);
}

}  // namespace

std::vector<Difference> differences(const JobConfig& job_then, const JobConfig& job_now) {
  const JobConfig saved = with_absolute_paths(job_then), now = with_absolute_paths(job_now);
  std::vector<Difference> found;
  const auto compare = [&](const std::string& name, Effect effect, std::string was, std::string is) {
    if (was != is) found.push_back({name, effect, std::move(was), std::move(is)});
  };
  for (const Option& option : options())
    compare(option.name(), option.effect, value_text(option, saved), value_text(option, now));
  for (const TableList& list : table_lists()) {
    const size_t size = list.size(now);
    if (!list.decides_by_field) {
      compare(list.section, Effect::course, list_text(list, saved), list_text(list, now));
    } else if (list.size(saved) != size) {
      compare(list.section, Effect::data, list_text(list, saved), list_text(list, now));
    } else {
      for (size_t i = 0; i < size; ++i) {
        const JobConfig was = list.only(saved, i), is = list.only(now, i);
        for (const Option& field : list.fields)
          compare(fmt::format("{}[{}].{}", list.section, i, field.key), field.effect, value_text(field, was),
                  value_text(field, is));
      }
    }
  }
  return found;
}

std::string describe(const Difference& difference) {
  return fmt::format("{} was {}, is {}", difference.option, difference.saved, difference.now);
}

JobConfig read_saved_job(const std::string& toml, const std::string& name) {
  return read_document_inside(toml, name).job;
}

}  // namespace pptrain::config

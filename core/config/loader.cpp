#include "core/config/loader.h"

#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/config/document.h"
#include "core/config/given_job.h"
#include "core/config/validate.h"

namespace pptrain::config {

std::string read_job_file(const std::string& path) {
  if (const std::string kind = special_file(path); !kind.empty()) {
    throw UsageError(fmt::format("{}: is {}; expected a job file (TOML)", path, kind));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw UsageError(
        fmt::format("{}: cannot be read: {}. Expected a job file (TOML); `pptrain config --reference` prints "
                    "one with every key",
                    path, std::generic_category().message(errno)));
  }
  return text;
}

JobConfig load_job(const std::string& path, std::span<const std::string> overrides, const Hooks& hooks) {
  return load_given_job(path, overrides, hooks).job;
}

JobConfig parse_job(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                    const Hooks& hooks) {
  return parse_given_job(text, name, overrides, hooks).job;
}

GivenJob load_given_job(const std::string& path, std::span<const std::string> overrides, const Hooks& hooks,
                        std::optional<int64_t> warmup_steps) {
  return parse_given_job(read_job_file(path), path, overrides, hooks, warmup_steps);
}

GivenJob parse_given_job(const std::string& text, const std::string& name,
                         std::span<const std::string> overrides, const Hooks& hooks,
                         std::optional<int64_t> warmup_steps) {
  Document document = read_document(text, name, overrides);
  const ReportConflict report = [&](std::initializer_list<std::string_view> options,
                                    const std::string& message) {
    document.report_conflict(options, message);
  };
  if (!document.job.lr_schedule.warmup_steps) document.job.lr_schedule.warmup_steps = warmup_steps;
  apply_hf_dir(document, hooks.read_hf_config);
  if (hooks.finish_model) hooks.finish_model(document.job.model, document.job.train.seq_len, report);
  fill_world(document, hooks.world);
  const bool fits = check_products(document);
  validate(document, hooks.needs_files);
  resolve(document.job);
  if (hooks.finish && fits) hooks.finish(document.job, report, document.problems.empty());
  document.throw_if_bad();
  GivenJob result{.job = document.job, .given = given_toml(document), .notes = {}};
  for (const auto& [option, note] : document.notes) result.notes.push_back(note);
  return result;
}

ChatSection parse_chat(std::span<const std::string> settings) {
  std::vector<std::string> overrides;
  for (const std::string& setting : settings) overrides.push_back("data.chat." + setting);
  Document document = read_document("", "--chat", overrides);
  std::erase_if(document.problems, [](const Problem& problem) { return !problem.origin.from_override; });
  document.throw_if_bad();
  return document.job.data.chat;
}

}  // namespace pptrain::config

#include "app/plan/run_files.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "app/plan/layout.h"
#include "app/plan/plan.h"
#include "core/config/differences.h"
#include "core/config/field.h"
#include "core/config/options.h"
#include "core/io/files.h"
#include "core/io/paths.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// Choices of a start, taken together or not at all.
bool is_choice(std::string_view option) {
  // What auto, cost and search read alone.
  constexpr std::array grounds = {std::string_view("distributed.pp_embedding_weight"),
                                  std::string_view("distributed.pp_head_weight"),
                                  std::string_view("distributed.pp_memory_gb")};
  return std::ranges::find(grounds, option) != grounds.end() ||
         std::ranges::any_of(layout_facts(), [&](const LayoutFact& fact) {
           return fact.chosen_at_start && fact.option == option;
         });
}

config::JobConfig read_job(const fs::path& file) {
  return config::read_saved_job(io::read_small_file(file, std::numeric_limits<size_t>::max()), file.string());
}

// Does the option describe the job for which the choices were made?
bool is_ground(const config::Option& option) {
  return option.effect == config::Effect::layout || option.effect == config::Effect::model ||
         option.name() == "train.seq_len";
}

}  // namespace

config::JobConfig read_job_file_of_run(const fs::path& file) {
  config::JobConfig job = read_job(file);
  std::string& schedule = job.distributed.pp_schedule;
  if (schedule == schedule_name) schedule = (file.parent_path() / schedule).string();
  return job;
}

std::optional<config::JobConfig> read_resolved_job(const fs::path& run_dir) {
  fs::path file = run_dir / resolved_name;
  if (!io::is_there(file)) file = run_dir / job_name;
  if (!io::is_there(file)) return std::nullopt;
  return read_job_file_of_run(file);
}

std::optional<RunChoices> RunChoices::read(const fs::path& run_dir) {
  if (!io::is_there(run_dir / resolved_name) || !io::is_there(run_dir / job_name)) return std::nullopt;
  return RunChoices(read_job(run_dir / job_name), *read_resolved_job(run_dir));
}

bool RunChoices::take(config::JobConfig& job, std::string_view kept) const {
  const std::string& schedule = resolved_.distributed.pp_schedule;
  if (schedule_choice(schedule) == ScheduleChoice::file && !io::is_there(schedule)) return false;
  for (const config::Option& option : config::options()) {
    if (option.name() == kept || !(is_choice(option.name()) || is_ground(option))) continue;
    const config::JobConfig& expected = is_choice(option.name()) ? given_ : resolved_;
    if (toml_value(option, job) != toml_value(option, expected)) return false;
  }
  for (const config::Option& option : config::options()) {
    if (is_choice(option.name()) && option.name() != kept) config::copy_value(option, resolved_, job);
  }
  return true;
}

std::optional<int64_t> RunChoices::warmup_steps() const {
  if (given_.lr_schedule.warmup_steps) return std::nullopt;
  return resolved_.lr_schedule.warmup_steps;
}

int64_t RunChoices::world_size() const {
  int64_t ranks = 1;
  for (const config::AxisKey& axis : config::axis_keys) ranks *= resolved_.distributed.*axis.size;
  return ranks;
}

}  // namespace pptrain::app

#include "parallel/schedule/generators/generators.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <cctype>

#include "core/base/error.h"
#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Lower case, without "_" and "-", without the "Schedule" of PyTorch's classes.
std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c != '_' && c != '-') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  constexpr std::string_view prefix = "schedule";
  return result.starts_with(prefix) ? result.substr(prefix.size()) : result;
}

const Generator& find(const std::string& name) {
  const std::string wanted = plain(name);
  for (const Generator* generator : all_generators) {
    if (plain(generator->name) == wanted || generator->alias == wanted) return *generator;
  }
  if (is_schedule_by_option(name)) {
    throw UsageError(
        "seq1f1b is 1f1b with slices of sequences: give 1f1b and distributed.pp_sequence_slices");
  }
  throw UsageError(
      fmt::format("there is no schedule '{}'; there are: {}", name, fmt::join(schedule_names(), ", ")));
}

void check_sizes(const ScheduleSpec& spec, const Generator& generator) {
  if (spec.ranks < 1) throw UsageError(fmt::format("a schedule needs at least 1 rank, not {}", spec.ranks));
  if (spec.microbatches < 1) {
    throw UsageError(fmt::format("a schedule needs at least 1 microbatch, not {}", spec.microbatches));
  }
  if (spec.sequence_slices < 1)
    throw UsageError(fmt::format("a microbatch has at least 1 sequence slice, not {}", spec.sequence_slices));
  if (spec.stages_per_rank < 0) {
    throw UsageError(fmt::format("stages per rank must be at least 1, not {}", spec.stages_per_rank));
  }
  const int only = generator.only_stages_per_rank;
  if (only == 0 || spec.stages_per_rank == 0 || spec.stages_per_rank == only) return;
  throw UsageError(fmt::format(
      "{} has exactly {} {} per rank, not {}: set stages per rank to {}{}", generator.name, only,
      only == 1 ? "stage" : "stages", spec.stages_per_rank, only,
      only == 1 ? ", or use interleaved_1f1b, looped_bfs or interleaved_zb, which take several" : ""));
}

}  // namespace

ScheduleSpec spec_of(const Schedule& schedule) {
  return {.name = schedule.name,
          .ranks = schedule.ranks,
          .microbatches = schedule.lists(),
          .stages_per_rank = schedule.stages_per_rank,
          .sequence_slices = schedule.sequence_slices};
}

Schedule make_schedule(const ScheduleSpec& spec) {
  const Generator& generator = find(spec.name);
  check_sizes(spec, generator);
  Schedule schedule;
  schedule.name = generator.name;
  schedule.ranks = spec.ranks;
  schedule.microbatches = spec.microbatches * spec.sequence_slices;
  schedule.stages_per_rank =
      spec.stages_per_rank == 0 ? generator.default_stages_per_rank : spec.stages_per_rank;
  schedule.actions.resize(spec.ranks);
  if (generator.check != nullptr) generator.check(schedule);
  generator.generate(schedule);
  return spec.sequence_slices == 1 ? schedule : in_sequence_slices(schedule, spec.sequence_slices);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator* generator : all_generators) names.emplace_back(generator->name);
  return names;
}

std::vector<std::string> training_schedule_names() {
  std::vector<std::string> names = schedule_names();
  std::erase(names, "inference");
  return names;
}

bool repeats_with_one_stage(const std::string& name) {
  return find(name).repeats_with_one_stage;
}

bool is_schedule_by_option(const std::string& name) {
  return plain(name) == "seq1f1b";
}

std::string canonical_schedule_name(const std::string& name) {
  return std::string(find(name).name);
}

}  // namespace pptrain::schedule

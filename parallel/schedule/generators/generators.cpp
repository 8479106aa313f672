#include "parallel/schedule/generators/generators.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "core/base/error.h"
#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

struct Generator {
  std::string_view name;
  std::string_view alias;  // another name: PyTorch's class without "Schedule", in the plain form of `plain`
  int default_stages_per_rank;
  int only_stages_per_rank;  // 0: any
  void (*check)(const Schedule&);
  void (*generate)(Schedule&);
};

void check_nothing(const Schedule&) {}

void check_1f1b(const Schedule& s) {
  if (s.microbatches >= s.ranks) return;
  const std::string p = std::to_string(s.ranks);
  throw UsageError("1f1b on " + p + " ranks needs at least " + p + " microbatches, and there are " +
                   std::to_string(s.microbatches) + ": raise the number of microbatches to " + p +
                   ", or use gpipe, which takes any number");
}

// Rounds must divide the microbatches; says which numbers near by would do.
void check_rounds(const Schedule& s) {
  if (microbatches_per_round(s.ranks, s.microbatches) > 0) return;
  int below = s.microbatches;
  int above = s.microbatches;
  while (microbatches_per_round(s.ranks, below) == 0) --below;
  while (microbatches_per_round(s.ranks, above) == 0) ++above;
  const int rounds = s.microbatches / s.ranks;
  throw UsageError(s.name + " on " + std::to_string(s.ranks) + " ranks takes " +
                   std::to_string(s.microbatches) + " microbatches in " + std::to_string(rounds) +
                   " rounds, which do not divide them: use " + std::to_string(below) + " or " +
                   std::to_string(above) + " microbatches");
}

void check_dualpipe_v(const Schedule& s) {
  if (s.microbatches >= 2 * s.ranks) return;
  const std::string needed = std::to_string(2 * s.ranks);
  throw UsageError("dualpipe_v on " + std::to_string(s.ranks) + " ranks needs at least " + needed +
                   " microbatches (two per rank), and there are " + std::to_string(s.microbatches) +
                   ": raise the number of microbatches to " + needed +
                   ", or use zbv, which takes any number");
}

constexpr std::array<Generator, 12> generators = {{
    {"gpipe", "gpipe", 1, 1, check_nothing, generate_gpipe},
    {"1f1b", "1f1b", 1, 1, check_1f1b, generate_1f1b},
    {"interleaved_1f1b", "interleaved1f1b", 2, 0, check_rounds, generate_interleaved_1f1b},
    {"looped_bfs", "loopedbfs", 2, 0, check_nothing, generate_looped_bfs},
    {"zb_h1", "zb1p", 1, 1, check_nothing, generate_zb_h1},
    {"zb_h2", "zb2p", 1, 1, check_nothing, generate_zb_h2},
    {"interleaved_zb", "interleavedzerobubble", 2, 0, check_rounds, generate_interleaved_zb},
    {"zbv", "zbvzerobubble", 2, 2, check_nothing, generate_zbv},
    {"v_half", "vhalf", 2, 2, check_nothing, generate_v_half},
    {"v_min", "vmin", 2, 2, check_nothing, generate_v_min},
    {"dualpipe_v", "dualpipev", 2, 2, check_dualpipe_v, generate_dualpipe_v},
    {"inference", "forwardonly", 1, 0, check_nothing, generate_inference},
}};

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
  for (const Generator& generator : generators) {
    if (plain(generator.name) == wanted || generator.alias == wanted) return generator;
  }
  if (is_planned_schedule(name)) {
    throw UsageError("seq1f1b is not there yet: it needs attention over slices of a sequence. Use 1f1b");
  }
  std::string known;
  for (const Generator& generator : generators)
    known += (known.empty() ? "" : ", ") + std::string(generator.name);
  throw UsageError("there is no schedule '" + name + "'; there are: " + known);
}

void check_sizes(const ScheduleSpec& spec, const Generator& generator) {
  if (spec.ranks < 1) throw UsageError("a schedule needs at least 1 rank, not " + std::to_string(spec.ranks));
  if (spec.microbatches < 1) {
    throw UsageError("a schedule needs at least 1 microbatch, not " + std::to_string(spec.microbatches));
  }
  if (spec.stages_per_rank < 0) {
    throw UsageError("stages per rank must be at least 1, not " + std::to_string(spec.stages_per_rank));
  }
  const int only = generator.only_stages_per_rank;
  if (only != 0 && spec.stages_per_rank != 0 && spec.stages_per_rank != only) {
    throw UsageError(
        std::string(generator.name) + " has exactly " + std::to_string(only) +
        (only == 1 ? " stage" : " stages") + " per rank, not " + std::to_string(spec.stages_per_rank) +
        ": set stages per rank to " + std::to_string(only) +
        (only == 1 ? ", or use interleaved_1f1b, looped_bfs or interleaved_zb, which take several" : ""));
  }
}

}  // namespace

Schedule make_schedule(const ScheduleSpec& spec) {
  const Generator& generator = find(spec.name);
  check_sizes(spec, generator);
  Schedule schedule;
  schedule.name = generator.name;
  schedule.ranks = spec.ranks;
  schedule.microbatches = spec.microbatches;
  schedule.stages_per_rank =
      spec.stages_per_rank == 0 ? generator.default_stages_per_rank : spec.stages_per_rank;
  schedule.actions.resize(spec.ranks);
  generator.check(schedule);
  generator.generate(schedule);
  return schedule;
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator& generator : generators) names.emplace_back(generator.name);
  return names;
}

std::vector<std::string> training_schedule_names() {
  std::vector<std::string> names = schedule_names();
  std::erase(names, "inference");
  return names;
}

bool is_planned_schedule(const std::string& name) {
  return plain(name) == "seq1f1b";
}

std::string canonical_schedule_name(const std::string& name) {
  return std::string(find(name).name);
}

}  // namespace pptrain::schedule

#include "app/plan/layout.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/config/options.h"

namespace pptrain::app {
namespace {

using config::DistributedSection;
using config::HeadPlace;
using config::JobConfig;
using config::ReduceGradients;
using config::TrainSection;
using Set = LayoutFact::Set;

struct Names {
  std::string_view option, column;
};

enum class Chosen { by_user, at_start };
enum class OnMesh { fixed, varies };

template <auto Member>
constexpr LayoutFact fact(Names names, int set_place, Set set, Chosen chosen, OnMesh on_mesh,
                          decltype(LayoutFact::read) read, decltype(LayoutFact::write) write) {
  return {.option = names.option,
          .column = names.column,
          .set_place = set_place,
          .set = set,
          .chosen_at_start = chosen == Chosen::at_start,
          .varies_on_mesh = on_mesh == OnMesh::varies,
          .same = [](const Layout& a, const Layout& b) { return a.*Member == b.*Member; },
          .read = read,
          .write = write};
}

// Layout and job hold it as one type.
template <auto Member, auto Section, auto Key>
constexpr LayoutFact fact(Names names, int set_place, Set set, Chosen chosen, OnMesh on_mesh) {
  return fact<Member>(
      names, set_place, set, chosen, on_mesh,
      [](const JobConfig& job, Layout& layout) { layout.*Member = job.*Section.*Key; },
      [](const Layout& layout, JobConfig& job) { job.*Section.*Key = layout.*Member; });
}

constexpr auto train = &JobConfig::train;
constexpr auto distributed = &JobConfig::distributed;

constexpr std::array facts = {
    fact<&Layout::schedule, distributed, &DistributedSection::pp_schedule>(
        {"distributed.pp_schedule", "pp_schedule"}, 3, Set::always, Chosen::at_start, OnMesh::fixed),
    fact<&Layout::spread_head>(
        {"distributed.pp_head", "pp_head"}, 5, Set::other, Chosen::at_start, OnMesh::fixed,
        [](const JobConfig& job, Layout& layout) {
          layout.spread_head = job.distributed.pp_head == HeadPlace::spread;
        },
        [](const Layout& layout, JobConfig& job) {
          job.distributed.pp_head = layout.spread_head ? HeadPlace::spread : HeadPlace::last;
        }),
    fact<&Layout::sequence_slices>(
        {"distributed.pp_sequence_slices", "pp_sequence_slices"}, 6, Set::other, Chosen::at_start,
        OnMesh::fixed,
        [](const JobConfig& job, Layout& layout) { layout.sequence_slices = job.distributed.slices(); },
        [](const Layout& layout, JobConfig& job) {
          job.distributed.pp_sequence_slices = layout.sequence_slices;
        }),
    fact<&Layout::stages_per_rank, distributed, &DistributedSection::pp_stages_per_rank>(
        {"distributed.pp_stages_per_rank", "pp_stages_per_rank"}, 4, Set::always, Chosen::at_start,
        OnMesh::fixed),
    fact<&Layout::layers>(
        {"distributed.pp_split", "layers_per_stage"}, 7, Set::always, Chosen::at_start, OnMesh::fixed,
        [](const JobConfig&, Layout&) {},
        [](const Layout& layout, JobConfig& job) {
          if (layout.layers.empty()) return;
          job.distributed.pp_split = {.text = "", .layers = pipeline::layers_per_stage(layout.layers)};
        }),
    fact<&Layout::micro_batch_size, train, &TrainSection::micro_batch_size>(
        {"train.micro_batch_size", "micro_batch_size"}, 8, Set::whole_or_other, Chosen::by_user,
        OnMesh::varies),
    fact<&Layout::grad_accum_steps, train, &TrainSection::grad_accum_steps>(
        {"train.grad_accum_steps", "grad_accum_steps"}, 9, Set::whole_or_other, Chosen::by_user,
        OnMesh::fixed),
    fact<&Layout::recompute, train, &TrainSection::recompute>(
        {"train.recompute", "recompute"}, 10, Set::whole_or_other, Chosen::at_start, OnMesh::varies),
    fact<&Layout::reshard>(
        {"distributed.reshard_after_forward", "reshard_after_forward"}, 1, Set::whole_if_sharded,
        Chosen::by_user, OnMesh::varies,
        [](const JobConfig& job, Layout& layout) { layout.reshard = job.distributed.reshards(); },
        [](const Layout& layout, JobConfig& job) {
          std::optional<bool>& said = job.distributed.reshard_after_forward;
          if (said || layout.reshard != job.distributed.reshards()) said = layout.reshard;
        }),
    fact<&Layout::every_microbatch>(
        {"distributed.reduce_gradients", "reduce_gradients"}, 2, Set::whole_if_reduced, Chosen::by_user,
        OnMesh::varies,
        [](const JobConfig& job, Layout& layout) {
          layout.every_microbatch = job.distributed.reduce_gradients == ReduceGradients::microbatch;
        },
        [](const Layout& layout, JobConfig& job) {
          job.distributed.reduce_gradients =
              layout.every_microbatch ? ReduceGradients::microbatch : ReduceGradients::step;
        }),
};

constexpr std::array in_set_order = [] {
  std::array sorted = facts;
  std::ranges::sort(sorted, {}, &LayoutFact::set_place);
  return sorted;
}();

// Does --set need the fact, for a job that says something `other` or not?
bool is_set(const LayoutFact& fact, const mesh::MeshShape& mesh, bool whole, bool other) {
  const bool sharded = mesh.size(mesh::Group::fsdp) > 1 || mesh.size(mesh::Group::efsdp) > 1;
  switch (fact.set) {
    case Set::always:
      return true;
    case Set::other:
      return other;
    case Set::whole_or_other:
      return whole || other;
    case Set::whole_if_sharded:
      return whole && sharded;
    case Set::whole_if_reduced:
      return whole && mesh.size(mesh::Group::stage) > 1;
  }
  return true;
}

// A TOML value, which is one of JSON too, without quotes and brackets.
std::string bare(const std::string& toml, std::string_view separator) {
  const auto word = [](const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  const auto value = nlohmann::json::parse(toml);
  if (!value.is_array()) return word(value);
  std::string text;
  for (const auto& element : value) text += fmt::format("{}{}", text.empty() ? "" : separator, word(element));
  return text;
}

}  // namespace

std::string Layout::schedule_text() const {
  return schedule + (spread_head ? ", head spread" : "") +
         (sequence_slices > 1 ? fmt::format(", {} slices", sequence_slices) : "");
}

std::string Layout::recompute_text() const {
  return recompute.describe(grad_accum_steps, sequence_slices);
}

std::string LayoutFact::toml(const Layout& layout) const {
  JobConfig job;
  job.distributed.reshard_after_forward = false;  // so that it is said
  write(layout, job);
  return config::toml_value(*config::find_option(option), job).value();
}

std::string LayoutFact::text(const Layout& layout, std::string_view separator) const {
  return bare(toml(layout), separator);
}

std::span<const LayoutFact> layout_facts() {
  return facts;
}

Layout layout_of(const JobConfig& job, const mesh::MeshShape& mesh) {
  Layout layout{.mesh = mesh};
  for (const LayoutFact& fact : facts) fact.read(job, layout);
  return layout;
}

std::vector<std::string> Layout::overrides(const JobConfig& job, bool whole) const {
  std::vector<std::string> keys;
  if (whole) {
    for (const auto& [axis, size] : mesh.sizes())
      keys.push_back(fmt::format("distributed.{}={}", axis, size));
  }
  for (const LayoutFact& fact : in_set_order) {
    const config::Option& option = *config::find_option(fact.option);
    const bool one_stage = fact.option == "distributed.pp_split" && layers.size() == 1;
    const std::string toml = fact.toml(*this);
    if (!is_set(fact, mesh, whole, config::toml_value(option, job) != toml)) continue;
    keys.push_back(fmt::format("{}={}", fact.option, one_stage ? "even" : bare(toml, ",")));
  }
  return keys;
}

}  // namespace pptrain::app

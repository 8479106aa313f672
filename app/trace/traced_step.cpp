#include "app/trace/traced_step.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/trace/trace_file.h"
#include "core/base/error.h"

namespace pptrain::app {
namespace {

schedule::Schedule empty_schedule(const TraceSummary& trace) {
  schedule::Schedule result;
  result.name = trace.schedule;
  result.ranks = trace.run.mesh.pp;
  result.stages_per_rank = static_cast<int>(trace.layers.size()) / result.ranks;
  result.microbatches = static_cast<int>(trace.run.job.train.grad_accum_steps);
  result.placement = trace.placement;
  result.actions.resize(static_cast<size_t>(result.ranks));
  return result;
}

// Is the event a pass of this step? Exchanges, waits and phases are not drawn.
bool is_pass(const nlohmann::json& event, int64_t step) {
  if (event.at(keys::phase) != "X") return false;
  const std::string category = event.at(keys::category);
  return (category == "forward" || category.starts_with("backward")) &&
         event.at(keys::arguments).at(keys::step) == step;
}

// Begins at time 0.
void finish_times(schedule::Simulation& times) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const auto& spans : times.spans) {
    for (const schedule::Span& span : spans) {
      begin = std::min(begin, span.start);
      end = std::max(end, span.end);
    }
  }
  times.step_time = end - begin;
  for (auto& spans : times.spans) {
    schedule::RankTime rank;
    for (schedule::Span& span : spans) {
      span = {span.start - begin, span.end - begin};
      rank.busy += span.end - span.start;
    }
    rank.steady = std::max(0.0, times.step_time - rank.busy);
    times.ranks.push_back(rank);
    times.ends.push_back(spans.empty() ? 0 : spans.back().end);
  }
}

TracedStep pick(const nlohmann::json& trace, const TraceSummary& summary, size_t most_actions) {
  TracedStep result{.step = trace.at(keys::other).at(keys::steps).back().at(keys::step),
                    .schedule = empty_schedule(summary),
                    .times = {}};
  const mesh::MeshShape& mesh = summary.run.mesh;
  result.times.spans.resize(static_cast<size_t>(mesh.pp));
  const int64_t replicas = mesh.world_size() / mesh.pp;  // pp is the outermost axis
  size_t actions = 0;
  for (const nlohmann::json& event : trace.at(keys::events)) {
    if (!is_pass(event, result.step)) continue;
    const auto rank = event.at(keys::thread).get<int64_t>();
    if (rank % replicas != 0) continue;
    const auto place = static_cast<size_t>(rank / replicas);
    const double start = event.at(keys::time).get<double>() * 1e-6;
    result.schedule.actions.at(place).push_back(
        schedule::parse_action(event.at(keys::name).get<std::string>()));
    result.times.spans.at(place).push_back({start, start + event.at(keys::duration).get<double>() * 1e-6});
    if (++actions > most_actions)
      throw UsageError(fmt::format("its steps have more than {} passes", most_actions));
  }
  if (actions == 0) throw UsageError("it has no passes");
  finish_times(result.times);
  return result;
}

}  // namespace

TracedStep read_traced_step(const std::filesystem::path& path, size_t most_actions) {
  const TraceSummary summary = read_trace(path);
  std::ifstream file(path);
  try {
    return pick(nlohmann::json::parse(file), summary, most_actions);
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace pptrain::app

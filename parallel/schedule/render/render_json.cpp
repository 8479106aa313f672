#include <spdlog/fmt/fmt.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "parallel/schedule/cost/in_flight.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::schedule {
namespace {

nlohmann::ordered_json rank_json(const Schedule& schedule, const Simulation& simulation, const InFlight& peak,
                                 int rank) {
  const RankTime& time = simulation.ranks[rank];
  return {{"rank", rank},
          {"stages", schedule.stages_of(rank)},
          {"busy", time.busy},
          {"fill", time.fill},
          {"steady", time.steady},
          {"drain", time.drain},
          {"barrier", time.barrier},
          {"wait_for_transfer", time.wait_for_transfer},
          {"wait_for_exchange", time.wait_for_exchange},
          {"reducing", time.reducing},
          {"bubble", simulation.bubble(rank)},
          {"in_flight",
           {{"activations", peak.activations},
            {"weight_operands", peak.weight_operands},
            {"held", peak.held},
            {"receive_buffers", peak.receive_buffers}}}};
}

}  // namespace

nlohmann::ordered_json summary_json(const Schedule& schedule, const Simulation& simulation) {
  nlohmann::ordered_json summary = {{"schedule", schedule.name},
                                    {"ranks", schedule.ranks},
                                    {"microbatches", schedule.microbatches},
                                    {"stages_per_rank", schedule.stages_per_rank},
                                    {"placement", to_string(schedule.placement)},
                                    {"forward_only", schedule.forward_only},
                                    {"step_time", simulation.step_time},
                                    {"bubble", simulation.bubble()},
                                    {"per_rank", nlohmann::ordered_json::array()}};
  const std::vector<InFlight> peaks = in_flight(schedule);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    summary["per_rank"].push_back(rank_json(schedule, simulation, peaks[rank], rank));
  }
  return summary;
}

std::string render_json(const nlohmann::ordered_json& summary) {
  return summary.dump(2) + '\n';
}

// Written by hand: a step has millions of actions, and as nlohmann's values they would fill a gigabyte.
std::string render_json_with_actions(const nlohmann::ordered_json& summary, const Schedule& schedule,
                                     const Simulation& simulation) {
  std::string text = summary.dump(2);
  text.resize(text.rfind("\n}"));
  text += ",\n  \"actions\": [";
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    text += rank == 0 ? "\n    [" : ",\n    [";
    const auto& list = schedule.actions[rank];
    for (size_t i = 0; i < list.size(); ++i) {
      const Span& span = simulation.spans[rank][i];
      fmt::format_to(std::back_inserter(text), "{}\n      {{\"action\": \"{}\", \"start\": {}, \"end\": {}}}",
                     i == 0 ? "" : ",", to_string(list[i]), span.start, span.end);
    }
    text += "\n    ]";
  }
  return text + "\n  ]\n}\n";
}

}  // namespace pptrain::schedule

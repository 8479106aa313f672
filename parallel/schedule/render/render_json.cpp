#include <string>

#include "parallel/schedule/cost/in_flight.h"
#include "parallel/schedule/render/json_text.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::schedule {
namespace {

std::string rank_json(const Schedule& schedule, const Simulation& simulation, const InFlight& peak,
                      int rank) {
  const RankTime& time = simulation.ranks[rank];
  std::string stages;
  for (const int stage : schedule.stages_of(rank))
    stages += (stages.empty() ? "" : ", ") + std::to_string(stage);
  std::string actions;
  for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
    const Span& span = simulation.spans[rank][i];
    actions += i ? ",\n      " : "\n      ";
    actions += JsonObject()
                   .add("action", json_quoted(to_string(schedule.actions[rank][i])))
                   .add("start", span.start)
                   .add("end", span.end)
                   .str();
  }
  return JsonObject()
      .add("rank", rank)
      .add("stages", "[" + stages + "]")
      .add("busy", time.busy)
      .add("fill", time.fill)
      .add("steady", time.steady)
      .add("drain", time.drain)
      .add("barrier", time.barrier)
      .add("wait_for_transfer", time.wait_for_transfer)
      .add("bubble", simulation.bubble(rank))
      .add("in_flight", JsonObject()
                            .add("activations", peak.activations)
                            .add("weight_operands", peak.weight_operands)
                            .add("held", peak.held)
                            .add("receive_buffers", peak.receive_buffers)
                            .str())
      .add("actions", "[" + actions + "]")
      .str();
}

}  // namespace

std::string render_json(const Schedule& schedule, const Simulation& simulation) {
  const std::vector<InFlight> peaks = in_flight(schedule);
  std::string ranks;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    ranks += (rank ? ",\n    " : "\n    ") + rank_json(schedule, simulation, peaks[rank], rank);
  }
  return JsonObject()
             .add("schedule", json_quoted(schedule.name))
             .add("ranks", schedule.ranks)
             .add("microbatches", schedule.microbatches)
             .add("stages_per_rank", schedule.stages_per_rank)
             .add("placement", json_quoted(to_string(schedule.placement)))
             .add("forward_only", schedule.forward_only ? std::string("true") : std::string("false"))
             .add("step_time", simulation.step_time)
             .add("bubble", simulation.bubble())
             .add("per_rank", "[" + ranks + "]")
             .str() +
         "\n";
}

}  // namespace pptrain::schedule

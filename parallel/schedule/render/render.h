// A schedule as people and tools read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

struct TextOptions {
  bool colour = false;   // ANSI colours by kind of action
  int width = 100;       // columns of the terminal; a longer step goes on in a further band of rows
  int bands = 3;         // at most; a still longer step is cut there, which is said
  bool seconds = false;  // times are seconds, and told with a unit
};

// One row per rank, time to the right with a ruler above; idle time is dots. Passes of a kind on a stage are
// equally wide: their times are rounded to whole characters, and the picture is a simulation with these.
// `compute`: without communication, which is not drawn.
std::string render_text(const Schedule& compute, const Costs& costs, const TextOptions& options = {});

// The schedule (its name, "ranks", "microbatches", "stages_per_rank", "placement", "forward_only"),
// "step_time" and "bubble"; under "per_rank" for each rank its "rank", "stages", the members of RankTime, its
// "bubble", and "in_flight" with the members of InFlight. Times in the simulation's unit, counts in
// stage-microbatches. Callers may add members of their own.
nlohmann::ordered_json summary_json(const Schedule& schedule, const Simulation& simulation);

// A summary as text; with actions, its last member "actions" has every rank's list, one action a line:
// [[{"action": "0F0", "start": 0, "end": 1}, ...], ...].
std::string render_json(const nlohmann::ordered_json& summary);
std::string render_json_with_actions(const nlohmann::ordered_json& summary, const Schedule& schedule,
                                     const Simulation& simulation);

// A timeline to scale as an SVG picture: a row per rank, a box per action with its microbatch, darker for a
// rank's later stages. Under a row are two strips with the rank's gathers and reductions, if they take time.
// A tooltip tells each action and its times. The picture grows with the step, up to 8000 pixels. `seconds`:
// the simulation's times are seconds, and told with a unit.
std::string render_svg(const Schedule& schedule, const Simulation& simulation, bool seconds = false);

// Chrome trace events (for Perfetto or chrome://tracing): a track per rank, an event per compute action, an
// arrow for what goes from rank to rank, and tracks for the gathers and reductions that take time. `seconds`
// is what the simulation's unit of time is in seconds.
std::string render_trace(const Schedule& schedule, const Simulation& simulation, double seconds = 1);

// --- What Chrome traces call things, whether planned or measured.

const char* trace_category(ActionKind kind);  // "forward", "backward_input", ...

// The value that an action (not a pair) hands to another rank, and the one that it takes from one: "1F3" is
// the output of stage 1 for microbatch 3. Nothing if the value stays on its rank.
std::optional<std::string> value_sent(const Schedule& schedule, const Action& action);
std::optional<std::string> value_received(const Schedule& schedule, const Action& action);

}  // namespace pptrain::schedule

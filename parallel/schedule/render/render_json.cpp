#include "parallel/schedule/render/render.h"

#include <spdlog/fmt/fmt.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "parallel/schedule/cost/memory.h"

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

// The value goes on to the next stage, or back from it, if it is a gradient.
std::optional<std::string> crossing(const Schedule& schedule, const Action& action, bool sent) {
  const bool forward = action.kind == ActionKind::forward;
  if (!forward && !is_gradient(action.kind)) return std::nullopt;
  const int boundary = forward == sent ? action.stage : action.stage - 1;
  if (boundary < 0 || boundary + 1 >= schedule.stages() || !schedule.crosses_ranks(boundary))
    return std::nullopt;
  const int maker = forward ? boundary : boundary + 1;
  return fmt::format("{}{}{}", maker, forward ? 'F' : 'B', action.microbatch);
}

// Written by hand: with millions of events nlohmann's values would fill gigabytes. Nothing here but the
// schedule's name can need an escape.
class Trace {
 public:
  Trace(const Schedule& schedule, const Simulation& simulation, double seconds)
      : s_(schedule), simulation_(simulation), microseconds_(seconds * 1e6) {}

  std::string str() {
    text_ = R"({"displayTimeUnit": "ms", "traceEvents": [)";
    text_ += fmt::format(R"({}{{"ph": "M", "name": "process_name", "pid": 0, "args": {{"name": {}}}}})", '\n',
                         nlohmann::json("pptrain plan: " + s_.name).dump());
    for (int rank = 0; rank < s_.ranks; ++rank) {
      name_track(rank, rank, "");
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) add_action(rank, i);
    }
    return text_ + "\n]}\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += ",\n";
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void name_track(int track, int rank, const char* what) {
    add(R"({{"ph": "M", "name": "thread_name", "pid": 0, "tid": {}, "args": {{"name": "rank {}{}"}}}})",
        track, rank, what);
    add(R"({{"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": {}, "args": {{"sort_index": {}}}}})",
        track, 3 * rank + track / s_.ranks);
  }

  void add_action(int rank, size_t i) {
    const Action& action = s_.actions[rank][i];
    const Span& span = simulation_.spans[rank][i];
    if (!is_compute(action.kind)) return add_exchange(rank, action, span);
    add_event(rank, action, span);
    for_each_part(action, [&](const Action& part) { add_arrows(rank, span, part); });
  }

  // Gathers and reductions overlap with the passes: each rank has a track of its own for them.
  void add_exchange(int rank, const Action& action, const Span& span) {
    if (span.end <= span.start) return;
    const bool gather = action.kind == ActionKind::unshard;
    const int track = rank + s_.ranks * (gather ? 1 : 2);
    if (named_.insert(track).second) name_track(track, rank, gather ? " gathers" : " reductions");
    add_event(track, action, span);
  }

  void add_event(int track, const Action& action, const Span& span) {
    add(R"({{"ph": "X", "name": "{}", "pid": 0, "tid": {}, "cat": "{}", "ts": {}, "dur": {}}})",
        to_string(action), track, trace_category(action.kind), span.start * microseconds_,
        (span.end - span.start) * microseconds_);
  }

  // An arrow begins in the action that makes the value and ends in the one that uses it, with one id.
  void add_arrows(int rank, const Span& span, const Action& part) {
    if (const auto value = value_sent(s_, part)) add_arrow('s', rank, *value, span.end, "");
    if (const auto value = value_received(s_, part)) {
      add_arrow('f', rank, *value, span.start, R"(, "bp": "e")");
    }
  }

  void add_arrow(char phase, int rank, const std::string& value, double time, const char* more) {
    add(R"({{"ph": "{}", "name": "send", "pid": 0, "tid": {}, "cat": "transfer", "id": "{}", "ts": {}{}}})",
        phase, rank, value, time * microseconds_, more);
  }

  const Schedule& s_;
  const Simulation& simulation_;
  double microseconds_;
  std::set<int> named_;  // tracks of exchanges
  std::string text_;
};

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

const char* trace_category(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::backward_input:
      return "backward_input";
    case ActionKind::backward_weight:
      return "backward_weight";
    case ActionKind::head_forward:
    case ActionKind::head_backward:
      return "head";
    case ActionKind::overlapped_pair:
      return "overlapped_pair";
    default:
      return "communication";
  }
}

std::optional<std::string> value_sent(const Schedule& schedule, const Action& action) {
  return crossing(schedule, action, /*sent=*/true);
}

std::optional<std::string> value_received(const Schedule& schedule, const Action& action) {
  return crossing(schedule, action, /*sent=*/false);
}

std::string render_trace(const Schedule& schedule, const Simulation& simulation, double seconds) {
  return Trace(schedule, simulation, seconds).str();
}

}  // namespace pptrain::schedule

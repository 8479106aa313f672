#include <string>

#include "parallel/schedule/json_text.h"
#include "parallel/schedule/render.h"

namespace pptrain::schedule {
namespace {

class Trace {
 public:
  Trace(const Schedule& schedule, const Simulation& simulation, double seconds)
      : s_(schedule), simulation_(simulation), microseconds_(seconds * 1e6) {}

  std::string str() {
    add(JsonObject()
            .add("ph", json_quoted("M"))
            .add("name", json_quoted("process_name"))
            .add("pid", 0)
            .add("args", JsonObject().add("name", json_quoted("pptrain plan: " + s_.name)).str()));
    for (int rank = 0; rank < s_.ranks; ++rank) {
      add(event("M", "thread_name", rank)
              .add("args", JsonObject().add("name", json_quoted("rank " + std::to_string(rank))).str()));
      for (size_t i = 0; i < s_.actions[rank].size(); ++i) add_action(rank, i);
    }
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events_ + "\n]}\n";
  }

 private:
  void add(const JsonObject& object) { events_ += (events_.empty() ? "" : ",\n") + object.str(); }

  JsonObject event(const char* phase, const std::string& name, int rank) const {
    return JsonObject()
        .add("ph", json_quoted(phase))
        .add("name", json_quoted(name))
        .add("pid", 0)
        .add("tid", rank);
  }

  static const char* category(ActionKind kind) {
    switch (kind) {
      case ActionKind::forward:
        return "forward";
      case ActionKind::backward:
        return "backward";
      case ActionKind::backward_input:
        return "backward_input";
      case ActionKind::backward_weight:
        return "backward_weight";
      default:
        return "overlapped_pair";
    }
  }

  void add_action(int rank, size_t i) {
    const Action& action = s_.actions[rank][i];
    if (!is_compute(action.kind)) return;
    const Span& span = simulation_.spans[rank][i];
    add(event("X", to_string(action), rank)
            .add("cat", json_quoted(category(action.kind)))
            .add("ts", span.start * microseconds_)
            .add("dur", (span.end - span.start) * microseconds_));
    for_each_part(action, [&](const Action& part) { add_arrows(rank, span, part); });
  }

  // An arrow begins in the action that makes the value and ends in the one that uses it, with one id.
  void add_arrows(int rank, const Span& span, const Action& part) {
    const bool is_f = part.kind == ActionKind::forward;
    if (!is_f && !is_gradient(part.kind)) return;
    const int next = part.stage + (is_f ? 1 : -1);
    const int previous = part.stage - (is_f ? 1 : -1);
    const auto other_rank = [&](int stage) {
      return stage >= 0 && stage < s_.stages() && s_.rank_of(stage) != rank;
    };
    const std::string kind = is_f ? "F" : "B";
    if (other_rank(next)) {
      add(event("s", "send", rank)
              .add("cat", json_quoted("transfer"))
              .add("id", json_quoted(std::to_string(part.stage) + kind + std::to_string(part.microbatch)))
              .add("ts", span.end * microseconds_));
    }
    if (other_rank(previous)) {
      add(event("f", "send", rank)
              .add("cat", json_quoted("transfer"))
              .add("bp", json_quoted("e"))
              .add("id", json_quoted(std::to_string(previous) + kind + std::to_string(part.microbatch)))
              .add("ts", span.start * microseconds_));
    }
  }

  const Schedule& s_;
  const Simulation& simulation_;
  double microseconds_;
  std::string events_;
};

}  // namespace

std::string render_trace(const Schedule& schedule, const Simulation& simulation, double seconds) {
  return Trace(schedule, simulation, seconds).str();
}

}  // namespace pptrain::schedule

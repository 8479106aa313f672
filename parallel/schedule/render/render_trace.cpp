#include <string>

#include "parallel/schedule/render/json_text.h"
#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/trace_names.h"

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

  void add_action(int rank, size_t i) {
    const Action& action = s_.actions[rank][i];
    if (!is_compute(action.kind)) return;
    const Span& span = simulation_.spans[rank][i];
    add(event("X", to_string(action), rank)
            .add("cat", json_quoted(trace_category(action.kind)))
            .add("ts", span.start * microseconds_)
            .add("dur", (span.end - span.start) * microseconds_));
    for_each_part(action, [&](const Action& part) { add_arrows(rank, span, part); });
  }

  // An arrow begins in the action that makes the value and ends in the one that uses it, with one id.
  void add_arrows(int rank, const Span& span, const Action& part) {
    if (const auto value = value_sent(s_, part)) add(arrow("s", rank, *value, span.end));
    if (const auto value = value_received(s_, part)) {
      add(arrow("f", rank, *value, span.start).add("bp", json_quoted("e")));
    }
  }

  JsonObject arrow(const char* phase, int rank, const std::string& value, double time) const {
    return event(phase, "send", rank)
        .add("cat", json_quoted("transfer"))
        .add("id", json_quoted(value))
        .add("ts", time * microseconds_);
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

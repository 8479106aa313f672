#include <spdlog/fmt/fmt.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "parallel/schedule/render/render.h"
#include "parallel/schedule/render/trace_names.h"

namespace pptrain::schedule {
namespace {

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

  // Gathers and reductions run beside the passes: each rank has a track of its own for them.
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

std::string render_trace(const Schedule& schedule, const Simulation& simulation, double seconds) {
  return Trace(schedule, simulation, seconds).str();
}

}  // namespace pptrain::schedule

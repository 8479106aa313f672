#include "parallel/schedule/cost/in_flight.h"

#include <algorithm>
#include <cstdint>

namespace pptrain::schedule {
namespace {

class Counter {
 public:
  Counter(const Schedule& schedule, const PlacementTable& table, int rank, bool messages)
      : s_(schedule), table_(table), list_(schedule.actions[rank]), messages_(messages) {}

  InFlight run() {
    for (const Action& action : list_) {
      if (is_receive(action.kind)) ++buffers_;
      for_each_part(action, [&](const Action& part) {
        if (part.kind == ActionKind::forward && !s_.forward_only) ++activations_;
      });
      note();
      for_each_part(action, [&](const Action& part) { finish(part); });
      note();
    }
    return peak_;
  }

 private:
  void finish(const Action& part) {
    const bool from_previous = part.stage > 0 && table_.crosses[part.stage - 1];
    const bool from_next = part.stage + 1 < s_.stages() && table_.crosses[part.stage];
    if (messages_ && part.kind == ActionKind::forward && from_previous) --buffers_;
    if (messages_ && is_gradient(part.kind) && from_next) --buffers_;
    if (is_gradient(part.kind)) --activations_;
    if (part.kind == ActionKind::backward_input) ++operands_;
    if (part.kind == ActionKind::backward_weight) --operands_;
  }

  void note() {
    peak_.activations = std::max(peak_.activations, activations_);
    peak_.weight_operands = std::max(peak_.weight_operands, operands_);
    peak_.held = std::max(peak_.held, activations_ + operands_);
    peak_.receive_buffers = std::max(peak_.receive_buffers, buffers_);
  }

  const Schedule& s_;
  const PlacementTable& table_;
  const std::vector<Action>& list_;
  bool messages_;
  InFlight peak_;
  int activations_ = 0;
  int operands_ = 0;
  int buffers_ = 0;
};

}  // namespace

std::vector<InFlight> in_flight(const Schedule& schedule) {
  const bool messages = schedule.has_communication();
  const PlacementTable table(schedule);
  std::vector<InFlight> peaks;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    peaks.push_back(Counter(schedule, table, rank, messages).run());
  }
  return peaks;
}

}  // namespace pptrain::schedule

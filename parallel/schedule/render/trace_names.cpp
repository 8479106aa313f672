#include "parallel/schedule/render/trace_names.h"

#include <spdlog/fmt/fmt.h>

namespace pptrain::schedule {
namespace {

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

}  // namespace

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

}  // namespace pptrain::schedule

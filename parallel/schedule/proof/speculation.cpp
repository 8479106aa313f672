#include "parallel/schedule/proof/speculation.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {
namespace {

// If sends block, no message is under way at the end of a prefix either.
bool may_be_in_prefix(const Schedule& s, const Action& action) {
  if (s.blocking_sends && is_communication(action.kind)) return false;
  if (action.kind == ActionKind::forward) return action.stage + 1 < s.stages();
  return action.kind == ActionKind::send_f || is_receive(action.kind) || action.kind == ActionKind::unshard ||
         action.kind == ActionKind::reshard;
}

// A message across a boundary: the same for a send and for its receive.
using Message = std::tuple<bool, int, int>;  // gradient, boundary, microbatch

Message message_of(const Action& action) {
  const bool gradient = action.kind == ActionKind::send_b || action.kind == ActionKind::recv_b;
  return {gradient, std::min(action.stage, other_stage(action)), action.microbatch};
}

std::vector<std::vector<Action>> uneven_messages(const Schedule& s, const std::vector<size_t>& prefix) {
  std::set<Message> sent;
  std::set<Message> posted;
  for (int rank = 0; rank < s.ranks; ++rank) {
    for (size_t i = 0; i < prefix[rank]; ++i) {
      const Action& action = s.actions[rank][i];
      if (is_send(action.kind)) sent.insert(message_of(action));
      if (is_receive(action.kind)) posted.insert(message_of(action));
    }
  }
  std::vector<std::vector<Action>> drain(s.ranks);
  for (int rank = 0; rank < s.ranks; ++rank) {
    for (size_t i = prefix[rank]; i < s.actions[rank].size(); ++i) {
      const Action& action = s.actions[rank][i];
      if (!is_send(action.kind) && !is_receive(action.kind)) continue;
      const auto& other_side = is_send(action.kind) ? posted : sent;
      if (other_side.contains(message_of(action))) drain[rank].push_back(action);
    }
  }
  return drain;
}

}  // namespace

Speculation speculate(const Schedule& schedule) {
  std::vector<size_t> ends;
  for (const auto& list : schedule.actions) {
    const auto end =
        std::ranges::find_if_not(list, [&](const Action& a) { return may_be_in_prefix(schedule, a); });
    ends.push_back(static_cast<size_t>(end - list.begin()));
  }
  Replay replay(schedule, schedule.blocking_sends ? WaitModel::blocking : WaitModel::at_consumer,
                schedule.has_communication());
  replay.stop_before(std::move(ends));
  replay.run([](int, size_t, const Action&) {});
  Speculation result{.prefix = replay.positions(), .drain = {}};
  result.drain = uneven_messages(schedule, result.prefix);
  return result;
}

}  // namespace pptrain::schedule

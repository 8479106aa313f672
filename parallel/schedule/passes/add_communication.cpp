#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/passes/consumers.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// Half the size of an action and its place: a step has a million of them.
struct PlacedReceive {
  uint32_t before;  // this compute action of the rank, by its number
  ActionKind kind;
  int stage;
  int microbatch;

  Action action() const { return {kind, stage, microbatch}; }
};

// What one rank receives from another, in the order of the sends.
struct Channel {
  int from;
  std::vector<PlacedReceive> receives;
};

Action receive_of(const Action& send) {
  return send.kind == ActionKind::send_f ? Action{ActionKind::recv_f, send.stage + 1, send.microbatch}
                                         : Action{ActionKind::recv_b, send.stage - 1, send.microbatch};
}

class CommunicationPass {
 public:
  explicit CommunicationPass(const Schedule& schedule)
      : s_(schedule),
        table_(schedule),
        consumers_(schedule),
        channels_(static_cast<size_t>(schedule.ranks)) {}

  Schedule run() {
    // Senders in ascending order: a rank's channels are then sorted by sender.
    for (int rank = 0; rank < s_.ranks; ++rank) collect_sends(rank);
    Schedule result = s_.without_actions();
    for (int rank = 0; rank < s_.ranks; ++rank) result.actions[rank] = lowered(rank);
    return result;
  }

 private:
  // The sends that follow a compute action: of a pair, the forward's first.
  template <typename Visit>
  void for_each_send(const Action& action, Visit&& visit) const {
    for_each_part(action, [&](const Action& part) {
      if (part.kind == ActionKind::forward && part.stage + 1 < s_.stages() && table_.crosses[part.stage]) {
        visit(Action{ActionKind::send_f, part.stage, part.microbatch});
      }
      if (is_gradient(part.kind) && part.stage > 0 && table_.crosses[part.stage - 1]) {
        visit(Action{ActionKind::send_b, part.stage, part.microbatch});
      }
    });
  }

  void collect_sends(int rank) {
    for (const Action& action : s_.actions[rank]) {
      for_each_send(action, [&](const Action& send) {
        const Action receive = receive_of(send);
        channel(table_.rank_of[receive.stage], rank)
            .receives.push_back({consumers_.of(receive), receive.kind, receive.stage, receive.microbatch});
      });
    }
  }

  Channel& channel(int to, int from) {
    auto& incoming = channels_[to];
    if (incoming.empty() || incoming.back().from != from) {
      incoming.push_back({from, {}});
      incoming.back().receives.reserve(static_cast<size_t>(s_.microbatches));
    }
    return incoming.back();
  }

  // Each receive before its consumer, or before that of a later message of the channel if that comes first.
  std::vector<PlacedReceive> placed_receives(int rank) {
    std::vector<PlacedReceive> placed;
    for (Channel& channel : channels_[rank]) {
      auto& receives = channel.receives;
      for (size_t i = receives.size(); i-- > 1;) {
        receives[i - 1].before = std::min(receives[i - 1].before, receives[i].before);
      }
      if (placed.empty()) {
        placed = std::move(receives);
        continue;
      }
      std::vector<PlacedReceive> merged;
      merged.reserve(placed.size() + receives.size());
      std::ranges::merge(placed, receives, std::back_inserter(merged), {}, &PlacedReceive::before,
                         &PlacedReceive::before);
      placed = std::move(merged);
    }
    return placed;
  }

  std::vector<Action> lowered(int rank) {
    const auto& list = s_.actions[rank];
    const std::vector<PlacedReceive> receives = placed_receives(rank);
    std::vector<Action> result;
    result.reserve(2 * list.size() + receives.size());
    auto receive = receives.begin();
    size_t computes = 0;
    for (const Action& action : list) {
      if (is_compute(action.kind)) {
        for (; receive != receives.end() && receive->before == computes; ++receive) {
          result.push_back(receive->action());
        }
        ++computes;
      }
      result.push_back(action);
      for_each_send(action, [&](const Action& send) { result.push_back(send); });
    }
    return result;
  }

  const Schedule& s_;
  PlacementTable table_;
  Consumers consumers_;
  std::vector<std::vector<Channel>> channels_;  // [receiving rank]
};

}  // namespace

Schedule add_communication(const Schedule& schedule) {
  if (schedule.has_communication()) throw Error("add_communication: the schedule has communication already");
  return CommunicationPass(schedule).run();
}

}  // namespace pptrain::schedule

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// What is sent over one channel, as the receives of it, in the order of the sends.
using Channels = std::map<std::pair<int, int>, std::vector<Action>>;  // {to, from}

// A receive and the place in the compute list that it goes before.
struct PlacedReceive {
  size_t before;
  Action action;
};

Action receive_of(const Action& send) {
  return send.kind == ActionKind::send_f ? Action{ActionKind::recv_f, send.stage + 1, send.microbatch, {}}
                                         : Action{ActionKind::recv_b, send.stage - 1, send.microbatch, {}};
}

// The sends that follow a compute action: of a pair, the forward's first.
template <typename Visit>
void for_each_send(const Schedule& s, const Action& action, Visit&& visit) {
  for_each_part(action, [&](const Action& part) {
    if (part.kind == ActionKind::forward && part.stage + 1 < s.stages() && s.crosses_ranks(part.stage)) {
      visit(Action{ActionKind::send_f, part.stage, part.microbatch, {}});
    }
    if (is_gradient(part.kind) && part.stage > 0 && s.crosses_ranks(part.stage - 1)) {
      visit(Action{ActionKind::send_b, part.stage, part.microbatch, {}});
    }
  });
}

Channels collect_channels(const Schedule& s) {
  Channels channels;
  for (int rank = 0; rank < s.ranks; ++rank) {
    for (const Action& action : s.actions[rank]) {
      for_each_send(s, action, [&](const Action& send) {
        const Action receive = receive_of(send);
        channels[{s.rank_of(receive.stage), rank}].push_back(receive);
      });
    }
  }
  return channels;
}

// Where each message is used: [0 for F, 1 for B or I][stage x microbatch] place in the list of its rank.
std::vector<size_t> consumers(const Schedule& s, bool of_forward) {
  std::vector<size_t> places(static_cast<size_t>(s.stages()) * s.microbatches);
  for (const auto& list : s.actions) {
    for (size_t i = 0; i < list.size(); ++i) {
      for_each_part(list[i], [&](const Action& part) {
        if (of_forward ? part.kind == ActionKind::forward : is_gradient(part.kind)) {
          places[static_cast<size_t>(part.stage) * s.microbatches + part.microbatch] = i;
        }
      });
    }
  }
  return places;
}

// Each receive before its consumer, or before that of a later message of the channel if that comes first.
std::vector<std::vector<PlacedReceive>> place_receives(const Schedule& s) {
  const std::vector<size_t> used_f = consumers(s, true);
  const std::vector<size_t> used_b = consumers(s, false);
  std::vector<std::vector<PlacedReceive>> placed(s.ranks);
  for (const auto& [channel, receives] : collect_channels(s)) {
    auto& list = placed[channel.first];
    const size_t first = list.size();
    for (const Action& receive : receives) {
      const auto& used = receive.kind == ActionKind::recv_f ? used_f : used_b;
      list.push_back(
          {used[static_cast<size_t>(receive.stage) * s.microbatches + receive.microbatch], receive});
    }
    for (size_t i = list.size() - 1; i > first; --i) {
      list[i - 1].before = std::min(list[i - 1].before, list[i].before);
    }
  }
  for (auto& list : placed) {
    std::stable_sort(list.begin(), list.end(),
                     [](const PlacedReceive& a, const PlacedReceive& b) { return a.before < b.before; });
  }
  return placed;
}

}  // namespace

Schedule add_communication(const Schedule& schedule) {
  if (schedule.has_communication()) throw Error("add_communication: the schedule has communication already");
  auto placed = place_receives(schedule);
  Schedule result = schedule;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& list = schedule.actions[rank];
    auto& lowered = result.actions[rank];
    lowered.clear();
    lowered.reserve(3 * list.size());
    auto receive = placed[rank].begin();
    for (size_t i = 0; i < list.size(); ++i) {
      for (; receive != placed[rank].end() && receive->before == i; ++receive) {
        lowered.push_back(std::move(receive->action));
      }
      lowered.push_back(list[i]);
      for_each_send(schedule, list[i], [&](Action send) { lowered.push_back(std::move(send)); });
    }
  }
  return result;
}

}  // namespace pptrain::schedule

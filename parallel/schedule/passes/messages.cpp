// The passes that place sends and receives.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/inputs.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/replay.h"

namespace pptrain::schedule {
namespace {

// The number of each F, B and I among the compute actions of its rank.
PassTable<uint32_t> numbers_of(const Schedule& schedule) {
  PassTable<uint32_t> numbers(schedule);
  for (const auto& list : schedule.actions) {
    uint32_t number = 0;
    for (const Action& action : list) {
      if (!is_compute(action.kind)) continue;
      for_each_part(action, [&](const Action& part) {
        if (part.kind != ActionKind::backward_weight) numbers[part] = number;
      });
      ++number;
    }
  }
  return numbers;
}

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
  return {send.kind == ActionKind::send_f ? ActionKind::recv_f : ActionKind::recv_b, other_stage(send),
          send.microbatch};
}

class CommunicationPass {
 public:
  explicit CommunicationPass(const Schedule& schedule)
      : s_(schedule),
        table_(schedule),
        numbers_(numbers_of(schedule)),
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
            .receives.push_back(
                {numbers_[pass_of(receive)], receive.kind, receive.stage, receive.microbatch});
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

  // Each receive before its consumer, or before an earlier consumer of a later message of the channel.
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
  PassTable<uint32_t> numbers_;
  std::vector<std::vector<Channel>> channels_;  // [receiving rank]
};

// The receives of one channel that are posted, by the compute action that uses them.
struct ChannelState {
  int from;  // rank
  std::vector<size_t> waiting;
  size_t last_place = 0;  // receives stay in order: none goes before this compute action
};

// One rank's list: its compute actions are numbered, and a receive stands before one of them.
class Hoist {
 public:
  Hoist(const Schedule& schedule, const PlacementTable& table, const PassTable<uint32_t>& numbers, int rank)
      : table_(table), numbers_(numbers), list_(schedule.actions[rank]) {}

  // A receive that moves goes before the last compute action, which therefore is held back in `last_`
  // with the sends that follow it; one that does not waits in `staying_` for the next compute action.
  std::vector<Action> run() {
    result_.reserve(list_.size());
    for (const Action& action : list_) {
      if (is_receive(action.kind)) {
        place(action);
        continue;
      }
      if (is_compute(action.kind)) {
        flush();
        ++computes_;
      }
      last_.push_back(action);
    }
    flush();
    return std::move(result_);
  }

 private:
  void flush() {
    for (auto* actions : {&last_, &staying_}) {
      result_.insert(result_.end(), actions->begin(), actions->end());
      actions->clear();
    }
  }

  void place(const Action& receive) {
    ChannelState& channel = channel_from(table_.rank_of[other_stage(receive)]);
    channel.last_place = place_in(channel);
    channel.waiting.push_back(numbers_[pass_of(receive)]);
    (channel.last_place < computes_ ? result_ : staying_).push_back(receive);
  }

  // A rank receives from few others.
  ChannelState& channel_from(int rank) {
    const auto known = std::ranges::find(channels_, rank, &ChannelState::from);
    return known != channels_.end() ? *known
                                    : channels_.emplace_back(ChannelState{.from = rank, .waiting = {}});
  }

  // The compute action that the receive goes before: the next one, or the one before that.
  size_t place_in(ChannelState& channel) const {
    const size_t earlier = std::max(computes_ == 0 ? 0 : computes_ - 1, channel.last_place);
    std::erase_if(channel.waiting, [&](size_t consumer) { return consumer < earlier; });
    return channel.waiting.size() <= 1 ? earlier : computes_;
  }

  const PlacementTable& table_;
  const PassTable<uint32_t>& numbers_;
  const std::vector<Action>& list_;
  size_t computes_ = 0;  // compute actions so far
  std::vector<ChannelState> channels_;
  std::vector<Action> last_, staying_, result_;
};

// Where ranks stop for good in lists whose sends block, the receives of messages that are sent move to the
// places where their ranks stand; receives of a spread head's messages are added there.
class Matching {
 public:
  explicit Matching(Schedule schedule)
      : s_(std::move(schedule)),
        table_(s_),
        left_(static_cast<size_t>(s_.ranks)),
        replay_(s_, WaitModel::blocking, s_.has_communication()) {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (const Action& action : s_.actions[rank]) {
        if (is_receive(action.kind)) ++left_[rank][from(action)];
      }
    }
  }

  Schedule run() && {
    const auto note = [this](int rank, size_t, const Action& action) {
      if (is_receive(action.kind)) --left_[rank][from(action)];
    };
    bool moved = true;
    while (moved && !replay_.run(note)) {
      moved = false;
      for (int rank = 0; rank < s_.ranks; ++rank) moved |= move_sent(rank);
    }
    return std::move(s_);
  }

 private:
  int from(const Action& receive) const { return table_.rank_of[other_stage(receive)]; }

  // Moves to the rank's place the receives of what has been sent to it. On a channel they stay in order.
  bool move_sent(int rank) {
    auto& list = s_.actions[rank];
    const size_t here = replay_.positions()[rank];
    size_t place = here;
    std::map<int, int> channels;  // [rank] receives from it that are left; without channels of which no more
                                  // has been sent
    for (const auto& [source, left] : left_[rank]) {
      if (left > 0) channels[source] = left;
    }
    for (size_t i = here; i < list.size() && !channels.empty(); ++i) {
      if (!is_receive(list[i].kind)) continue;
      const auto channel = channels.find(from(list[i]));
      if (channel == channels.end()) continue;
      const bool sent = replay_.is_sent(list[i]);
      if (!sent || --channel->second == 0) channels.erase(channel);
      if (!sent) continue;
      std::rotate(list.begin() + static_cast<ptrdiff_t>(place), list.begin() + static_cast<ptrdiff_t>(i),
                  list.begin() + static_cast<ptrdiff_t>(i) + 1);
      ++place;
    }
    const std::vector<Action> of_head = replay_.blocking()->missing_head_receives(rank);
    list.insert(list.begin() + static_cast<ptrdiff_t>(place), of_head.begin(), of_head.end());
    return place > here || !of_head.empty();
  }

  Schedule s_;
  PlacementTable table_;
  std::vector<std::map<int, int>> left_;  // [rank][from rank] receives ahead
  Replay replay_;
};

}  // namespace

Schedule add_communication(const Schedule& schedule) {
  if (schedule.has_communication()) throw Error("add_communication: the schedule has communication already");
  return CommunicationPass(schedule).run();
}

Schedule match_messages(const Schedule& schedule) {
  Schedule result = Matching(schedule).run();
  result.blocking_sends = true;
  return result;
}

Schedule hoist_receives(const Schedule& schedule) {
  const PlacementTable table(schedule);
  const PassTable<uint32_t> numbers = numbers_of(schedule);
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank] = Hoist(schedule, table, numbers, rank).run();
  }
  return result;
}

}  // namespace pptrain::schedule

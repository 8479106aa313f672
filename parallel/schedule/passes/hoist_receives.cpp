#include <algorithm>
#include <vector>

#include "parallel/schedule/passes/consumers.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// The receives of one channel that are posted, by the compute action that uses them.
struct ChannelState {
  int from;  // rank
  std::vector<size_t> waiting;
  size_t last_place = 0;  // receives stay in order: none goes before this compute action
};

// One rank's list: its compute actions are numbered, and a receive stands before one of them.
class Hoist {
 public:
  Hoist(const Schedule& schedule, const PlacementTable& table, const Consumers& consumers, int rank,
        int lookahead)
      : table_(table),
        consumers_(consumers),
        list_(schedule.actions[rank]),
        lookahead_(static_cast<size_t>(std::max(lookahead, 0))) {}

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
    const bool is_f = receive.kind == ActionKind::recv_f;
    ChannelState& channel = channel_from(table_.rank_of[is_f ? receive.stage - 1 : receive.stage + 1]);
    channel.last_place = place_in(channel);
    channel.waiting.push_back(consumers_.of(receive));
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
    return channel.waiting.size() <= lookahead_ ? earlier : computes_;
  }

  const PlacementTable& table_;
  const Consumers& consumers_;
  const std::vector<Action>& list_;
  size_t lookahead_;
  size_t computes_ = 0;  // compute actions so far
  std::vector<ChannelState> channels_;
  std::vector<Action> last_, staying_, result_;
};

}  // namespace

Schedule hoist_receives(const Schedule& schedule, int lookahead) {
  const PlacementTable table(schedule);
  const Consumers consumers(schedule);
  Schedule result = schedule.without_actions();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank] = Hoist(schedule, table, consumers, rank, lookahead).run();
  }
  return result;
}

}  // namespace pptrain::schedule

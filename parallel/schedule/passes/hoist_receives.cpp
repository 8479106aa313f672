#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

// The receives of one channel that are posted, by the compute action that uses them.
struct ChannelState {
  std::vector<size_t> waiting;
  size_t last_place = 0;  // receives stay in order: none goes before this compute action
};

// One rank's list: its compute actions are numbered, and a receive stands before one of them.
class Hoist {
 public:
  Hoist(const Schedule& schedule, int rank, int lookahead)
      : s_(schedule), list_(schedule.actions[rank]), lookahead_(static_cast<size_t>(std::max(lookahead, 0))) {
    number_consumers();
  }

  std::vector<Action> run() {
    place_receives();
    std::vector<Action> result;
    result.reserve(list_.size());
    size_t compute = 0;
    const auto emit_receives = [&] {
      for (const Action* receive : before_[compute]) result.push_back(*receive);
    };
    for (const Action& action : list_) {
      if (is_receive(action.kind)) continue;
      if (is_compute(action.kind)) {
        emit_receives();
        ++compute;
      }
      result.push_back(action);
    }
    emit_receives();
    return result;
  }

 private:
  int64_t key(bool of_forward, int stage, int microbatch) const {
    return (static_cast<int64_t>(stage) * s_.microbatches + microbatch) * 2 + of_forward;
  }

  void number_consumers() {
    for (const Action& action : list_) {
      if (!is_compute(action.kind)) continue;
      for_each_part(action, [&](const Action& part) {
        if (part.kind == ActionKind::forward) used_[key(true, part.stage, part.microbatch)] = computes_;
        if (is_gradient(part.kind)) used_[key(false, part.stage, part.microbatch)] = computes_;
      });
      ++computes_;
    }
  }

  void place_receives() {
    before_.resize(computes_ + 1);
    size_t compute = 0;
    for (const Action& action : list_) {
      compute += is_compute(action.kind);
      if (!is_receive(action.kind)) continue;
      const bool is_f = action.kind == ActionKind::recv_f;
      ChannelState& channel = channels_[s_.rank_of(is_f ? action.stage - 1 : action.stage + 1)];
      const size_t place = place_of(channel, compute);
      channel.last_place = place;
      channel.waiting.push_back(used_.at(key(is_f, action.stage, action.microbatch)));
      before_[place].push_back(&action);
    }
  }

  size_t place_of(ChannelState& channel, size_t compute) const {
    const size_t earlier = std::max(compute == 0 ? 0 : compute - 1, channel.last_place);
    std::erase_if(channel.waiting, [&](size_t consumer) { return consumer < earlier; });
    return channel.waiting.size() <= lookahead_ ? earlier : compute;
  }

  const Schedule& s_;
  const std::vector<Action>& list_;
  size_t lookahead_;
  size_t computes_ = 0;
  std::unordered_map<int64_t, size_t> used_;
  std::unordered_map<int, ChannelState> channels_;  // by the sender's rank
  std::vector<std::vector<const Action*>> before_;  // [compute action]
};

}  // namespace

Schedule hoist_receives(const Schedule& schedule, int lookahead) {
  Schedule result = schedule;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    result.actions[rank] = Hoist(schedule, rank, lookahead).run();
  }
  return result;
}

}  // namespace pptrain::schedule

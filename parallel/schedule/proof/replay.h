// Walks all ranks' lists in an order in which they can run: each rank in its own order, each action once what
// it waits for has happened on the rank that makes it. Validation asks whether the walk reaches the end,
// simulation adds the times. Linear in the number of actions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/schedule/inputs.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// Where a rank waits for a message. Sends never wait.
enum class ReceiveModel {
  at_consumer,  // a receive only names its buffer; the F, B or I that uses it waits
  in_place,     // the receive itself waits: stricter, true of any transport
};

class Replay {
 public:
  // The schedule must outlive the replay and be well-formed (each stage on its rank, sizes within bounds).
  // `by_messages`: what goes from rank to rank is sent and received (Schedule::has_communication).
  Replay(const Schedule& schedule, ReceiveModel model, bool by_messages);

  // Every rank goes no further than this place in its list.
  void stop_before(std::vector<size_t> ends) { ends_ = std::move(ends); }

  // Calls visit(rank, index, action) in a possible order of execution. True if every action was visited (up
  // to where its rank stops).
  template <typename Visit>
  bool run(Visit&& visit);

  // After run: where each rank stands; its end if it is done.
  const std::vector<size_t>& positions() const { return next_; }

 private:
  // Of what a pass makes, on the ranks that need it.
  enum State : uint8_t { made = 1, arrived = 2 };

  bool ready(const Action& action) const {
    if (action.kind != ActionKind::overlapped_pair) return part_ready(action);
    return part_ready(forward_of(action)) && part_ready(backward_of(action));
  }
  bool part_ready(const Action& action) const;
  bool has_input(const Action& pass) const;
  void part_done(const Action& action);
  void hand_on(const Action& pass);
  void wake(int rank);

  const Schedule& schedule_;
  ReceiveModel model_;
  bool by_messages_;
  Inputs inputs_;
  PassTable<uint8_t> states_;    // of State
  std::vector<int> parts_done_;  // [microbatch x 2 (S, T)] ranks that have done it; empty with a whole head
  std::vector<size_t> next_;     // [rank]
  std::vector<size_t> ends_;     // [rank]
  std::vector<int> queue_;       // ranks that may be able to go on
  std::vector<uint8_t> queued_;  // [rank]
};

template <typename Visit>
bool Replay::run(Visit&& visit) {
  for (int rank = schedule_.ranks - 1; rank >= 0; --rank) wake(rank);
  while (!queue_.empty()) {
    const int rank = queue_.back();
    queue_.pop_back();
    queued_[rank] = 0;
    const auto& list = schedule_.actions[rank];
    for (size_t& i = next_[rank]; i < ends_[rank] && ready(list[i]); ++i) {
      // The walk jumps between the ranks' lists: more streams than a processor prefetches by itself.
      __builtin_prefetch(list.data() + std::min(i + 16, list.size() - 1));
      visit(rank, i, list[i]);
      for_each_part(list[i], [this](const Action& part) { part_done(part); });
    }
  }
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    if (next_[rank] < ends_[rank]) return false;
  }
  return true;
}

}  // namespace pptrain::schedule

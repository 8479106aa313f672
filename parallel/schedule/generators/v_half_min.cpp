// V-Half and V-Min (controllable-memory pipelines, arXiv 2405.15362): two stages per rank on a V, with the
// offsets between a microbatch's actions chosen so that less is in flight than under 1F1B. They are made in
// two steps: each microbatch repeats the first one's time slots six later, where F0, F1, I1 and I0 of a rank
// never meet and W's take the slots left; then idle slots are squeezed out.
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "parallel/schedule/generators/generator_list.h"

namespace pptrain::schedule {
namespace {

constexpr int period = 6;

// When a rank starts F0, F1, I1 and I0 of the first microbatch (0 and 1: its upper and its lower stage).
struct FirstSlots {
  int f0;
  int f1;
  int i1;
  int i0;
};

// One rank's actions in the order of their slots. W's are listed up to the last forward; those of the drain
// are left out, since there the I's alone decide how fast the other ranks go on.
std::deque<Action> slot_order(const Schedule& schedule, int rank, const FirstSlots& first) {
  struct Timed {
    int64_t slot;
    Action action;
  };
  const std::vector<int> stages = schedule.stages_of(rank);
  std::vector<Timed> timed;
  for (int mb = 0; mb < schedule.microbatches; ++mb) {
    const int64_t shift = static_cast<int64_t>(period) * mb;
    timed.push_back({first.f0 + shift, forward(stages[0], mb)});
    timed.push_back({first.f1 + shift, forward(stages[1], mb)});
    timed.push_back({first.i1 + shift, backward_input(stages[1], mb)});
    timed.push_back({first.i0 + shift, backward_input(stages[0], mb)});
  }
  std::sort(timed.begin(), timed.end(), [](const Timed& a, const Timed& b) { return a.slot < b.slot; });
  const int64_t last_forward =
      std::max(first.f0, first.f1) + static_cast<int64_t>(period) * (schedule.microbatches - 1);

  std::deque<Action> list;
  std::deque<Action> waiting;  // W's whose I is listed
  int64_t next = 0;
  for (const Timed& one : timed) {
    for (; next < one.slot && next <= last_forward && !waiting.empty(); ++next) {
      list.push_back(waiting.front());
      waiting.pop_front();
    }
    next = one.slot + 1;
    if (one.action.kind == ActionKind::backward_input) {
      waiting.push_back(backward_weight(one.action.stage, one.action.microbatch));
    }
    list.push_back(one.action);
  }
  return list;
}

// Runs all ranks' lists in steps of one action. A rank that would idle takes the first later action of each
// kind and stage that can run now, a forward only if that never takes the rank above the memory that the
// slots need; and if there is none, a W of the drain. Whatever fills an idle step delays nothing.
class Squeeze {
 public:
  Squeeze(Schedule& schedule, std::vector<std::deque<Action>> lists)
      : s_(schedule), lists_(std::move(lists)) {
    forward_end_.assign(s_.cells(), never);
    input_end_.assign(s_.cells(), never);
    held_.assign(s_.ranks, 0);
    drain_.resize(s_.ranks);
    weight_listed_.assign(s_.cells(), 0);
    for (const auto& list : lists_) note_list(list);
  }

  void run() {
    size_t left =
        static_cast<size_t>(6) * static_cast<size_t>(s_.microbatches) * static_cast<size_t>(s_.ranks);
    for (int64_t step = 0; left > 0; ++step) {
      for (int rank = 0; rank < s_.ranks; ++rank) left -= take_one(rank, step);
    }
  }

 private:
  static constexpr int64_t never = std::numeric_limits<int64_t>::max();

  size_t at(const Action& action) const { return at(action.stage, action.microbatch); }
  size_t at(int stage, int mb) const { return s_.cell(stage, mb); }

  // The memory that the slots need, and which W's have a slot.
  void note_list(const std::deque<Action>& list) {
    int held = 0;
    for (const Action& action : list) {
      held += action.kind == ActionKind::forward;
      most_held_ = std::max(most_held_, held);
      if (action.kind != ActionKind::backward_weight) continue;
      --held;
      weight_listed_[at(action)] = 1;
    }
  }

  bool ready(const Action& action, int64_t step) const {
    const int stage = action.stage;
    const int mb = action.microbatch;
    switch (action.kind) {
      case ActionKind::forward:
        return stage == 0 || forward_end_[at(stage - 1, mb)] <= step;
      case ActionKind::backward_input:
        if (stage + 1 == s_.stages()) return forward_end_[at(stage, mb)] <= step;
        return forward_end_[at(stage, mb)] <= step && input_end_[at(stage + 1, mb)] <= step;
      default:
        return input_end_[at(stage, mb)] <= step;
    }
  }

  // The place in the rank's list of what it can run now; the list's size if there is nothing.
  size_t choose(int rank, int64_t step) const {
    const auto& list = lists_[rank];
    if (list.empty() || ready(list.front(), step)) return 0;
    constexpr size_t kinds = 6;  // F, I and W of each of the two stages
    std::array<bool, kinds> seen = {};
    size_t seen_count = 0;
    int held = held_[rank];
    int most = held;  // before the action's own place in the list
    for (size_t i = 0; i < list.size() && seen_count < kinds; ++i) {
      const Action& action = list[i];
      const bool is_forward = action.kind == ActionKind::forward;
      const bool is_weight = action.kind == ActionKind::backward_weight;
      bool& kind_seen = seen[(is_forward ? 0 : is_weight ? 1 : 2) * 2 + (action.stage >= s_.ranks)];
      if (!kind_seen) {
        if (ready(action, step) && (!is_forward || most < most_held_)) return i;
        kind_seen = true;
        ++seen_count;
      }
      held += is_forward;
      most = std::max(most, held);
      held -= is_weight;
    }
    return list.size();
  }

  // Runs an action of the rank in this step; returns how many it ran (1 or 0).
  size_t take_one(int rank, int64_t step) {
    auto& list = lists_[rank];
    const size_t place = choose(rank, step);
    Action action;
    if (place < list.size()) {
      action = list[place];
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(place));
    } else if (!drain_[rank].empty() && ready(drain_[rank].front(), step)) {
      action = drain_[rank].front();
      drain_[rank].pop_front();
    } else {
      return 0;
    }
    finish(rank, action, step + 1);
    s_.actions[rank].push_back(action);
    return 1;
  }

  void finish(int rank, const Action& action, int64_t end) {
    if (action.kind == ActionKind::forward) {
      forward_end_[at(action)] = end;
      ++held_[rank];
    } else if (action.kind == ActionKind::backward_weight) {
      --held_[rank];
    } else {
      input_end_[at(action)] = end;
      if (!weight_listed_[at(action)])
        drain_[rank].push_back(backward_weight(action.stage, action.microbatch));
    }
  }

  Schedule& s_;
  std::vector<std::deque<Action>> lists_;  // [rank] what is left
  std::vector<std::deque<Action>> drain_;  // [rank] W's without a slot whose I is done
  std::vector<int64_t> forward_end_;       // [stage x microbatch]
  std::vector<int64_t> input_end_;
  std::vector<uint8_t> weight_listed_;
  std::vector<int> held_;  // [rank] F done, W not
  int most_held_ = 0;
};

template <typename Slots>
void generate(Schedule& schedule, Slots&& slots) {
  schedule.placement = Placement::v;
  std::vector<std::deque<Action>> lists;
  for (int rank = 0; rank < schedule.ranks; ++rank) lists.push_back(slot_order(schedule, rank, slots(rank)));
  Squeeze(schedule, std::move(lists)).run();
}

void generate_v_half(Schedule& schedule) {
  const int p = schedule.ranks;
  const int c = p % 2 == 0 ? 3 : 0;
  generate(schedule, [&](int r) {
    return FirstSlots{2 * r, 3 * p - r - 2, 3 * p + c + 2 * r - 1, 6 * p + c - r - 2};
  });
}

void generate_v_min(Schedule& schedule) {
  const int p = schedule.ranks;
  const int c = p % 3 == 0 ? 2 : 0;
  generate(schedule, [&](int r) { return FirstSlots{r, 2 * p - r - 1, 2 * p + c + r, 4 * p + c - r - 1}; });
}

}  // namespace

// About half the activations of 1F1B.
const Generator v_half = {.name = "v_half",
                          .alias = "vhalf",
                          .default_stages_per_rank = 2,
                          .only_stages_per_rank = 2,
                          .generate = generate_v_half};

// About a third of the activations of 1F1B.
const Generator v_min = {.name = "v_min",
                         .alias = "vmin",
                         .default_stages_per_rank = 2,
                         .only_stages_per_rank = 2,
                         .generate = generate_v_min};

}  // namespace pptrain::schedule

// V-Half and V-Min (controllable-memory pipelines, arXiv 2405.15362): two stages per rank on a V, with the
// offsets between a microbatch's actions chosen so that less is in flight than under 1F1B. They are made in
// two steps. Each microbatch repeats the first one's time slots six later: F0, F1, I1 and I0 of a rank never
// meet, and W's take the slots left. Then idle slots are squeezed out.
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/passes/list_scheduler.h"

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
  const std::vector<int> stages = schedule.stages_of(rank);
  std::vector<std::pair<int64_t, Action>> timed;  // slot, action
  for (int mb = 0; mb < schedule.microbatches; ++mb) {
    const int64_t shift = static_cast<int64_t>(period) * mb;
    timed.push_back({first.f0 + shift, forward(stages[0], mb)});
    timed.push_back({first.f1 + shift, forward(stages[1], mb)});
    timed.push_back({first.i1 + shift, backward_input(stages[1], mb)});
    timed.push_back({first.i0 + shift, backward_input(stages[0], mb)});
  }
  std::ranges::sort(timed, {}, &std::pair<int64_t, Action>::first);
  const int64_t last_forward =
      std::max(first.f0, first.f1) + static_cast<int64_t>(period) * (schedule.microbatches - 1);

  std::deque<Action> list;
  std::deque<Action> waiting;  // W's whose I is listed
  int64_t next = 0;
  for (const auto& [slot, action] : timed) {
    for (; next < slot && next <= last_forward && !waiting.empty(); ++next) {
      list.push_back(waiting.front());
      waiting.pop_front();
    }
    next = slot + 1;
    if (action.kind == ActionKind::backward_input)
      waiting.push_back(backward_weight(action.stage, action.microbatch));
    list.push_back(action);
  }
  return list;
}

// Runs all ranks' lists in steps of one action. A rank that would idle takes the first later action of each
// kind and stage that can run now. It takes a forward only if that never takes the rank above the memory that
// the slots need. If there is none, it takes a W of the drain. Whatever fills an idle step delays nothing.
class Squeeze {
 public:
  Squeeze(const Schedule& shape, std::vector<std::deque<Action>> lists)
      : s_(shape),
        scheduler_(shape),
        lists_(std::move(lists)),
        held_(lists_.size()),
        weights_listed_(static_cast<size_t>(shape.stages())) {
    for (const auto& list : lists_) note_list(list);
  }

  Schedule run() {
    return scheduler_.run([this](int rank, int64_t step) { return take_one(rank, step); },
                          [](const Action&) { return 1; });
  }

 private:
  // The memory that the slots need, and which W's have a slot.
  void note_list(const std::deque<Action>& list) {
    int held = 0;
    for (const Action& action : list) {
      held += action.kind == ActionKind::forward;
      most_held_ = std::max(most_held_, held);
      if (action.kind != ActionKind::backward_weight) continue;
      --held;
      ++weights_listed_[action.stage];
    }
  }

  // The place in the rank's list of what it can run now; the list's size if there is nothing.
  size_t choose(int rank, int64_t step) const {
    const auto& list = lists_[rank];
    if (list.empty() || scheduler_.is_ready(list.front(), step)) return 0;
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
        if (scheduler_.is_ready(action, step) && (!is_forward || most < most_held_)) return i;
        kind_seen = true;
        ++seen_count;
      }
      held += is_forward;
      most = std::max(most, held);
      held -= is_weight;
    }
    return list.size();
  }

  std::optional<Action> take_one(int rank, int64_t step) {
    auto& list = lists_[rank];
    const size_t place = choose(rank, step);
    if (place == list.size()) return std::nullopt;
    const Action action = list[place];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(place));
    if (action.kind == ActionKind::forward) ++held_[rank];
    if (action.kind == ActionKind::backward_weight) --held_[rank];
    if (action.kind == ActionKind::backward_input && action.microbatch >= weights_listed_[action.stage])
      list.push_back(backward_weight(action.stage, action.microbatch));
    return action;
  }

  const Schedule& s_;
  ListScheduler<int64_t> scheduler_;
  std::vector<std::deque<Action>> lists_;  // [rank] what is left; the drain's W's once their I is done
  std::vector<int> held_;                  // [rank] F done, W not
  std::vector<int> weights_listed_;        // [stage] of the first microbatches
  int most_held_ = 0;
};

template <typename Slots>
void generate(Schedule& schedule, Slots&& slots) {
  schedule.placement = Placement::v;
  std::vector<std::deque<Action>> lists;
  for (int rank = 0; rank < schedule.ranks; ++rank) lists.push_back(slot_order(schedule, rank, slots(rank)));
  schedule = Squeeze(schedule, std::move(lists)).run();
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

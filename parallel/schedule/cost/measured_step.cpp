#include "parallel/schedule/cost/measured_step.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "parallel/schedule/cost/idle_split.h"
#include "parallel/schedule/inputs.h"

namespace pptrain::schedule {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

struct Occupied {
  Span span;
  double input_made = never;  // on another rank; -never: the rank had it all along
};

class Splitter {
 public:
  Splitter(const Schedule& schedule, std::span<const RankStep> ranks)
      : s_(schedule), ranks_(ranks), inputs_(schedule), ends_(schedule, -never) {
    if (ranks.size() != s_.actions.size()) {
      throw Error(fmt::format("split_step: {} ranks for a schedule of {}", ranks.size(), s_.actions.size()));
    }
    for (const auto& list : s_.actions) actions_.push_back(timed_actions(list));
    for (size_t rank = 0; rank < ranks.size(); ++rank) note_ends(rank);
  }

  RankTime split(size_t rank) const {
    const RankStep& measured = ranks_[rank];
    IdleSplit idle(s_.forward_only);
    std::vector<Occupied> occupied;
    for (size_t i = 0; i < actions_[rank].size(); ++i) {
      idle.see(actions_[rank][i], measured.actions[i]);
      occupied.push_back({measured.actions[i], input_made(actions_[rank][i])});
    }
    for (const Span& span : measured.work) occupied.push_back({span});
    std::ranges::sort(occupied, {}, [](const Occupied& o) { return o.span.start; });

    RankTime time;
    double free = measured.step.start;
    for (const auto& [span, made] : occupied) {
      if (span.start > free) {
        idle.add(free, span.start, time);
        time.wait_for_transfer += span.start - std::clamp(made, free, span.start);
        free = span.start;
      }
      time.busy += std::max(0.0, span.end - free);
      free = std::max(free, span.end);
    }
    if (measured.step.end > free) idle.add(free, measured.step.end, time);
    return time;
  }

 private:
  void note_ends(size_t rank) {
    if (ranks_[rank].actions.size() != actions_[rank].size()) {
      throw Error(fmt::format("split_step: {} times for {} actions of rank {}", ranks_[rank].actions.size(),
                              actions_[rank].size(), rank));
    }
    for (size_t i = 0; i < actions_[rank].size(); ++i) {
      const Action& action = actions_[rank][i];
      if (action.kind == ActionKind::backward_weight || !is_compute(action.kind)) continue;
      ends_[action] = std::max(ends_[action], ranks_[rank].actions[i].end);
    }
  }

  double input_made(const Action& action) const {
    if (!is_compute(action.kind)) return -never;
    const std::optional<Input> input = inputs_.of(action);
    const bool of_others = input && (input->boundary >= 0 || action.kind == ActionKind::head_backward);
    return of_others ? ends_[input->pass] : -never;
  }

  const Schedule& s_;
  std::span<const RankStep> ranks_;
  std::vector<std::vector<Action>> actions_;  // [rank] timed_actions
  Inputs inputs_;
  PassTable<double> ends_;  // of the last rank
};

}  // namespace

std::vector<Action> timed_actions(const std::vector<Action>& list) {
  std::vector<Action> timed;
  for (const Action& action : list) {
    if (is_communication(action.kind)) continue;
    for_each_part(action, [&](const Action& part) { timed.push_back(part); });
  }
  return timed;
}

std::vector<RankTime> split_step(const Schedule& schedule, std::span<const RankStep> ranks) {
  const Splitter splitter(schedule, ranks);
  std::vector<RankTime> times;
  for (size_t rank = 0; rank < ranks.size(); ++rank) times.push_back(splitter.split(rank));
  return times;
}

}  // namespace pptrain::schedule

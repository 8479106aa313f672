#include "parallel/schedule/cost/measured_step.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "parallel/schedule/cost/idle_split.h"

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
      : s_(schedule),
        ranks_(ranks),
        end_f_(s_.cells(), -never),
        end_b_(end_f_),
        end_s_(static_cast<size_t>(schedule.microbatches), -never),
        end_t_(end_s_) {
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
      const double end = ranks_[rank].actions[i].end;
      if (action.kind == ActionKind::forward) end_f_[s_.cell(action.stage, action.microbatch)] = end;
      if (is_gradient(action.kind)) end_b_[s_.cell(action.stage, action.microbatch)] = end;
      if (is_of_head(action.kind)) {
        double& last = (action.kind == ActionKind::head_forward ? end_s_ : end_t_)[action.microbatch];
        last = std::max(last, end);
      }
    }
  }

  double input_made(const Action& action) const {
    if (action.kind == ActionKind::forward && action.stage > 0 && s_.crosses_ranks(action.stage - 1)) {
      return end_f_[s_.cell(action.stage - 1, action.microbatch)];
    }
    if (is_gradient(action.kind) && action.stage + 1 < s_.stages() && s_.crosses_ranks(action.stage)) {
      return end_b_[s_.cell(action.stage + 1, action.microbatch)];
    }
    const auto mb = static_cast<size_t>(action.microbatch);
    const int last = s_.stages() - 1;
    if (action.kind == ActionKind::head_forward) return end_f_[s_.cell(last, action.microbatch)];
    if (action.kind == ActionKind::head_backward) return end_s_[mb];
    return s_.spread_head && is_gradient(action.kind) && action.stage == last ? end_t_[mb] : -never;
  }

  const Schedule& s_;
  std::span<const RankStep> ranks_;
  std::vector<std::vector<Action>> actions_;  // [rank] timed_actions
  std::vector<double> end_f_;                 // [stage x microbatch]
  std::vector<double> end_b_;
  std::vector<double> end_s_, end_t_;  // [microbatch] of the last rank that did it
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

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {
namespace {

constexpr int64_t not_done_yet = std::numeric_limits<int64_t>::max();

// Time units of F, I and W.
int64_t time_units(const Action& action) {
  return action.kind == ActionKind::backward ? 2 : 1;
}

// One rank's list in two streams, each of which keeps its order.
struct RankStreams {
  std::vector<Action> forwards, others;
  std::vector<size_t> wanted;  // [other] forwards that are to come before it
  size_t next_forward = 0, next_other = 0;
  int held = 0, most_held = 0;  // microbatches between F and B or I
  int64_t busy_until = 0;

  bool done() const { return next_forward == forwards.size() && next_other == others.size(); }
  // Of the two heads that are there, the one whose turn it is first.
  std::array<const Action*, 2> heads() const {
    const Action* forward = next_forward < forwards.size() ? &forwards[next_forward] : nullptr;
    const Action* other = next_other < others.size() ? &others[next_other] : nullptr;
    if (other != nullptr && next_forward >= wanted[next_other]) return {other, forward};
    return {forward, other};
  }
};

RankStreams streams_of(const Schedule& whole, int rank, int slices) {
  RankStreams result;
  std::vector<std::vector<size_t>> places(static_cast<size_t>(whole.stages()));  // [stage] of its forwards
  for (const Action& action : whole.actions[rank]) {
    if (action.kind != ActionKind::forward) continue;
    result.forwards.push_back(action);
    places[static_cast<size_t>(action.stage)].push_back(result.forwards.size());
  }
  size_t before = 0;
  std::vector<size_t> of_stage(places.size());
  for (Action action : whole.actions[rank]) {
    const auto stage = static_cast<size_t>(action.stage);
    if (action.kind == ActionKind::forward) {
      ++before;
      ++of_stage[stage];
      continue;
    }
    const size_t count = of_stage[stage] + static_cast<size_t>(slices) - 1;
    result.wanted.push_back(std::max(before, places[stage][std::min(count, places[stage].size()) - 1]));
    action.microbatch += slices - 1 - 2 * (action.microbatch % slices);
    result.others.push_back(action);
  }
  return result;
}

// Runs the streams of all ranks, in units of time and without transfers, and lists what each rank did.
class SliceLists {
 public:
  SliceLists(const Schedule& whole, int slices, int more_held)
      : result_(whole.without_actions()), table_(whole) {
    result_.sequence_slices = slices;
    const std::vector<InFlight> held = in_flight(whole);
    for (int rank = 0; rank < whole.ranks; ++rank) {
      RankStreams& own = ranks_.emplace_back(streams_of(whole, rank, slices));
      own.most_held = held[static_cast<size_t>(rank)].activations + more_held;
    }
    forward_done_.assign(whole.cells(), not_done_yet);
    gradient_done_.assign(whole.cells(), not_done_yet);
  }

  // False where ranks wait for each other.
  bool run() {
    for (int rank = 0; rank < result_.ranks; ++rank) events_.emplace(0, rank);
    while (!events_.empty()) {
      const auto [now, rank] = events_.top();
      events_.pop();
      go_on(now, rank);
    }
    return std::ranges::all_of(ranks_, [](const RankStreams& own) { return own.done(); });
  }

  Schedule take() { return std::move(result_); }

 private:
  void go_on(int64_t now, int rank) {
    RankStreams& own = ranks_[static_cast<size_t>(rank)];
    if (own.busy_until > now) return;
    for (const Action* head : own.heads()) {
      if (head == nullptr || !ready(*head, now, own)) continue;
      return begin(*head, now, rank, own);
    }
  }

  bool ready(const Action& action, int64_t now, const RankStreams& own) const {
    const auto done = [&](const std::vector<int64_t>& times, int stage) {
      return times[result_.cell(stage, action.microbatch)] <= now;
    };
    if (action.kind == ActionKind::forward)
      return own.held < own.most_held && (action.stage == 0 || done(forward_done_, action.stage - 1));
    if (!is_gradient(action.kind)) return true;
    return done(forward_done_, action.stage) &&
           (action.stage + 1 == result_.stages() || done(gradient_done_, action.stage + 1));
  }

  void begin(const Action& action, int64_t now, int rank, RankStreams& own) {
    result_.actions[rank].push_back(action);
    const bool forward = action.kind == ActionKind::forward, gradient = is_gradient(action.kind);
    ++(forward ? own.next_forward : own.next_other);
    own.held += forward ? 1 : gradient ? -1 : 0;
    own.busy_until = now + time_units(action);
    events_.emplace(own.busy_until, rank);
    if (!forward && !gradient) return;
    (forward ? forward_done_ : gradient_done_)[result_.cell(action.stage, action.microbatch)] =
        own.busy_until;
    const int next = action.stage + (forward ? 1 : -1);
    if (0 <= next && next < result_.stages()) events_.emplace(own.busy_until, table_.rank_of[next]);
  }

  Schedule result_;
  PlacementTable table_;
  std::vector<RankStreams> ranks_;
  std::vector<int64_t> forward_done_, gradient_done_;  // [stage x microbatch]
  using Event = std::pair<int64_t, int>;               // time, rank
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Schedule in_sequence_slices(const Schedule& schedule, int slices) {
  const Schedule whole = split_pairs(schedule);
  const int all = whole.microbatches * whole.stages_per_rank;
  for (int more = (slices - 1) * whole.stages_per_rank; more <= all + (slices - 1) * whole.stages_per_rank;
       ++more) {
    SliceLists lists(whole, slices, more);
    if (lists.run()) return lists.take();
  }
  throw Error(fmt::format("{} has no order for {} sequence slices: its ranks wait for each other", whole.name,
                          slices));
}

}  // namespace pptrain::schedule

// A search's problem in whole numbers: equal on every machine, and small enough for millions of simulations.
// Internal to this folder.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/base/split_mix.h"
#include "parallel/schedule/search/search.h"

namespace pptrain::schedule {

// A pass of a chunk (the n-th stage of a rank). A stage takes its microbatches in one order
// (Schedule::nth_backward), so the letters of a rank's list say which microbatch each is of.
enum class Pass : uint8_t { forward, input, weight, backward };
inline constexpr int passes = 4;
using Letter = uint8_t;
using Letters = std::vector<Letter>;
using Lists = std::vector<Letters>;  // [rank]

struct Instance {
  static constexpr int64_t no_bound = std::numeric_limits<int64_t>::max() / 4;
  static constexpr ActionKind kinds[passes] = {ActionKind::forward, ActionKind::backward_input,
                                               ActionKind::backward_weight, ActionKind::backward};

  explicit Instance(const SearchProblem& problem);

  Letter letter(Pass pass, int chunk) const {
    return static_cast<Letter>(static_cast<int>(pass) * chunks + chunk);
  }
  Pass pass_of(Letter letter) const { return static_cast<Pass>(letter / chunks); }
  int chunk_of(Letter letter) const { return letter % chunks; }
  int stage_of(int rank, int chunk) const { return stage[static_cast<size_t>(rank * chunks + chunk)]; }
  // The stage's n-th pass of this kind.
  Action action(Pass pass, int stage, int n) const {
    return {kinds[static_cast<size_t>(pass)], stage, pass == Pass::forward ? n : shape.nth_backward(n)};
  }
  // How many backward passes a stage can run after so many F's: lists go back when all their slices are
  // there.
  int can_go_back(int forwards) const { return shape.in_whole_lists(forwards); }
  int64_t duration(int stage, Pass pass) const { return time[stage][static_cast<size_t>(pass)]; }

  // Is the list complete and in an order that a stage can run, within the rank's room?
  bool sound(int rank, const Letters& letters) const;
  // Moves ahead of each pass what must be done before it, and W's if it has no room; says whether the list is
  // sound then. It was before [first, last] changed, or all from `first` on; `last` becomes the last place
  // that differs.
  bool repair(int rank, Letters& letters, size_t first, size_t& last) const;
  bool repair(int rank, Letters& letters) const {
    size_t last = letters.size() - 1;
    return repair(rank, letters, 0, last);
  }

  // Nothing if the schedule's lists are not in the room or have no microbatch.
  std::optional<Lists> lists_of(const Schedule& schedule) const;
  Schedule schedule_of(const Lists& lists) const;

  Schedule shape;
  int ranks;
  int chunks;
  int stages;
  int microbatches;
  bool whole_backward = false;                    // is B shorter than I and W on some stage?
  std::vector<int> stage;                         // [rank x chunk]
  std::vector<int> rank_of;                       // [stage]
  std::vector<int> chunk;                         // [stage]
  std::vector<std::array<int64_t, passes>> time;  // [stage] ticks
  std::vector<int64_t> latency;                   // [stage] to the next one
  std::vector<std::array<int64_t, 2>> after;      // [stage] least time from the end of F, of I to the step's
  std::vector<std::array<int64_t, passes>> most;  // [stage] bytes that a pass adds while it runs, at most
  std::vector<std::array<int64_t, passes>> left;  // [stage] and that it leaves
  std::vector<int64_t> room;                      // [rank]
  // [rank] What counts after a rank's last pass, ticks. Post-validated: by how much the rank begins before
  // the last one, as it then may begin the next step.
  std::vector<int64_t> tail;
  double tick = 1;      // in units of the problem's costs
  int64_t least = 0;    // ticks: no step is shorter
  int64_t busiest = 0;  // ticks of the rank with the most work

 private:
  void add_times(const SearchProblem& problem);
  void add_bounds(bool post_validated);
  void add_loads(const SearchProblem& problem);
};

// How many heads in a row a coin shows, with a fraction, times `scale`: P(more than x scale) is about 2^-x.
inline int64_t exponential(Random& random, int64_t scale) {
  const uint64_t coins = random.bits();
  const auto heads = static_cast<int64_t>(std::countl_zero(coins | 0xffffff));
  const auto fraction = static_cast<int64_t>(coins & 0xffff);
  return heads * scale + ((fraction * scale) >> 16);
}

// Lists and the tick at which they end.
struct Timed {
  Lists lists;
  int64_t end = 0;
};

// The best of `tries` steady patterns: some at random, then the best one changed. Throws UsageError if a rank
// has no room for one microbatch.
Timed best_pattern(const Instance& instance, uint64_t seed, int tries);

// The lists after moves that improve them. `work`: passes to simulate, about. `heat`: how much longer a step
// is accepted at first, ticks.
Timed anneal(const Instance& instance, const Lists& seed, uint64_t random_seed, int64_t work, int64_t heat);

}  // namespace pptrain::schedule

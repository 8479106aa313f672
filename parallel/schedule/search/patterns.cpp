// Lists by priorities that follow from a few numbers: a steady pattern of passes, tried at random and
// changed.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/search/instance.h"

namespace pptrain::schedule {
namespace {

// The key of F or I of microbatch j is its offset + j x period: the moment that a steady pattern gives it.
// Ranks run passes ahead of their turn if they would idle, as memory allows, and W if no F or I is there.
struct Priorities {
  std::vector<int64_t> offset;  // [2 (F, I) x stage] ticks
  int64_t period = 1;           // ticks, positive
  int64_t patience = 0;         // a rank does not begin a W that ends later than this after its next F or I
                                // is there
};

// Whatever a rank can run next, the pass with the smallest key first. Never deadlocks: an F leaves room for
// what the rank's later chunks need to end a microbatch.
class PatternLists {
 public:
  explicit PatternLists(const Instance& instance)
      : in_(instance), ranks_(static_cast<size_t>(in_.ranks)), there_(2 * in_.shape.cells()) {
    result_.lists.resize(ranks_.size());
    for (int rank = 0; rank < in_.ranks; ++rank) {
      for (int c = 0; c < in_.chunks; ++c) {
        const int stage = in_.stage_of(rank, c);
        chunks_.push_back(
            {.stage = stage, .time = in_.time[stage], .most = in_.most[stage], .left = in_.left[stage]});
      }
      check_room(rank);
    }
  }

  // Lists by these priorities, until the next call; null as soon as the step must end after the limit.
  const Timed* run(const Priorities& priorities, int64_t limit) {
    reset(priorities);
    while (result_.end <= limit) {
      const auto first = std::ranges::min_element(ranks_, {}, &Rank::wake);
      if (first->wake == never) return &result_;
      begin_next(static_cast<int>(first - ranks_.begin()));
    }
    return nullptr;
  }

 private:
  static constexpr int64_t never = std::numeric_limits<int64_t>::max();
  struct Chunk {
    int stage = 0;
    std::array<int64_t, passes> time, most, left;
    std::array<int64_t, 2> offset{};  // of the keys of F and I
    std::array<int, 3> done{};        // F, I, W
  };
  struct Rank {
    int64_t wake = 0;  // when it may have something to run
    int64_t free = 0;
    int64_t held = 0;
    int64_t left = 0;  // ticks of work, and the rank's tail
  };
  struct Next {
    Pass pass = Pass::forward;
    int chunk = -1;  // none
    int64_t turn = never;
  };

  void reset(const Priorities& by) {
    period_ = by.period;
    patience_ = by.patience;
    result_.end = 0;
    std::ranges::fill(there_, never);
    std::fill_n(there_.begin(), in_.microbatches, 0);
    for (int rank = 0; rank < in_.ranks; ++rank) {
      result_.lists[rank].clear();
      ranks_[rank] = {.left = in_.tail[rank]};
      for (int c = 0; c < in_.chunks; ++c) {
        Chunk& own = chunk(rank, c);
        own.done = {};
        for (const size_t which : {0, 1})
          own.offset[which] = by.offset[which * static_cast<size_t>(in_.stages) + own.stage];
        ranks_[rank].left += in_.microbatches * (own.time[0] + own.time[1] + own.time[2]);
      }
    }
  }

  Chunk& chunk(int rank, int c) { return chunks_[static_cast<size_t>(rank * in_.chunks + c)]; }
  const Chunk& chunk(int rank, int c) const { return chunks_[static_cast<size_t>(rank * in_.chunks + c)]; }
  // When the input of a stage's n-th F or I is there; `never` until the pass that makes it has begun.
  int64_t& there(int which, int stage, int n) {
    return there_[static_cast<size_t>((which * in_.stages + stage) * in_.microbatches + n)];
  }

  void check_room(int rank) const {
    const int64_t needed = to_end_list(rank, /*chunk=*/0, /*list=*/0, /*forwards=*/0);
    if (needed <= in_.room[rank]) return;
    throw UsageError(
        fmt::format("rank {} has no room for one microbatch: its passes need {} bytes, there are {}", rank,
                    needed, in_.room[rank]));
  }

  // Extra bytes that a rank needs to end list number `list` (a microbatch, or all its slices) after
  // `forwards` F's of the chunk `first`. Counts the F's left of the list there, then those of each later
  // chunk, then any backward.
  int64_t to_end_list(int rank, int first, int list, int forwards) const {
    const int slices = in_.shape.sequence_slices;
    int64_t needed = 0;
    for (int c = in_.chunks - 1; c >= first; --c) {
      const Chunk& own = chunk(rank, c);
      needed = std::max({needed, own.most[1], own.left[1] + own.most[2]});
      const int done = c == first ? forwards : own.done[0];
      const int64_t to_do = std::min(slices, (list + 1) * slices - done);
      if (to_do == 0) continue;
      needed = std::max({own.most[0], (to_do - 1) * own.left[0] + own.most[0], to_do * own.left[0] + needed});
    }
    return needed;
  }

  // Is there room for the chunk's F besides all F's of the rank that have an earlier turn?
  bool has_room(int rank, int c, int64_t turn) const {
    if (in_.room[rank] == Instance::no_bound) return true;
    const Chunk& own = chunk(rank, c);
    const int slices = in_.shape.sequence_slices, n = own.done[0], list = n / slices;
    int64_t held = ranks_[rank].held;
    for (int other = 0; other < in_.chunks; ++other) {
      const Chunk& of = chunk(rank, other);
      const int64_t first = of.offset[0] + of.done[0] * period_;
      if (other == c || first >= turn) continue;
      // Only of lists that have passed this chunk: others would wait for it.
      const int passed = list * slices - of.done[0];
      if (passed <= 0) continue;
      held += std::min<int64_t>((turn - first - 1) / period_ + 1, passed) * std::max<int64_t>(0, of.left[0]);
    }
    return held + own.most[0] <= in_.room[rank] &&
           held + own.left[0] + to_end_list(rank, c, list, n + 1) <= in_.room[rank];
  }

  // Runs, of the F's and I's that are there and have room, the one whose turn is first; else a W. What it
  // then waits for wakes the rank.
  void begin_next(int rank) {
    Rank& own = ranks_[rank];
    const int64_t now = own.wake;
    own.wake = never;
    Next best;
    int64_t first_there = never;  // when an F or I that has room is there
    for (int c = 0; c < in_.chunks; ++c) {
      const Chunk& of = chunk(rank, c);
      for (const int which : {0, 1}) {
        const int n = of.done[which];
        if (n == (which == 0 ? in_.microbatches : of.done[0])) continue;
        const int64_t turn = of.offset[which] + n * period_;
        const int64_t at = there(which, of.stage, n);
        if (at == never || turn >= best.turn) continue;
        const bool room = which == 0 ? has_room(rank, c, turn) : own.held + of.most[1] <= in_.room[rank];
        if (!room) continue;
        first_there = std::min(first_there, at);
        if (at <= now) best = {static_cast<Pass>(which), c, turn};
      }
    }
    if (best.chunk < 0) best = oldest_weight(rank);
    if (best.chunk >= 0) {
      const int64_t end = now + chunk(rank, best.chunk).time[static_cast<size_t>(best.pass)];
      if (best.pass != Pass::weight || first_there == never || end <= first_there + patience_)
        return run(rank, best.pass, best.chunk, end);
    }
    own.wake = first_there;
  }

  // A W of the chunk with the most W's to do; of several such chunks, the later one.
  Next oldest_weight(int rank) const {
    Next found;
    int most = 0;
    for (int c = in_.chunks - 1; c >= 0; --c) {
      const int waiting = chunk(rank, c).done[1] - chunk(rank, c).done[2];
      if (waiting > most) most = waiting, found = {Pass::weight, c};
    }
    return found;
  }

  void run(int rank, Pass pass, int c, int64_t end) {
    const auto kind = static_cast<size_t>(pass);
    Rank& own = ranks_[rank];
    Chunk& of = chunk(rank, c);
    own.held += of.left[kind];
    own.left -= of.time[kind];
    own.wake = own.free = end;
    result_.lists[rank].push_back(in_.letter(pass, c));
    result_.end = std::max(result_.end, end + own.left);
    const int n = of.done[kind]++;
    if (pass == Pass::weight) return;
    result_.end = std::max(result_.end, end + in_.after[of.stage][kind]);
    if (pass == Pass::input) {
      if (of.stage > 0) arrive(1, of.stage - 1, n, end + in_.latency[of.stage - 1]);
    } else if (of.stage + 1 < in_.stages) {
      arrive(0, of.stage + 1, n, end + in_.latency[of.stage]);
    } else {
      arrive(1, of.stage, in_.shape.nth_backward(n), end);  // which is its own inverse
    }
  }

  void arrive(int which, int stage, int n, int64_t time) {
    there(which, stage, n) = time;
    Rank& rank = ranks_[in_.rank_of[stage]];
    rank.wake = std::min(rank.wake, std::max(rank.free, time));
  }

  const Instance& in_;
  std::vector<Rank> ranks_;
  std::vector<Chunk> chunks_;   // [rank x chunk]
  std::vector<int64_t> there_;  // [2 (F, I) x stage x n]
  int64_t period_ = 1, patience_ = 0;
  Timed result_;
};

constexpr int unit = 16;

// A microbatch's way down the stages and back: how long the pattern lets each step take, in sixteenths of the
// pass and its transfer. Building blocks of controllable memory (arXiv 2405.15362) are such patterns.
struct Pattern {
  std::vector<int> stretch;    // [2 (F, I) x chunk] of each step
  std::vector<int> gap;        // [2 x chunk] once, before the chunk's first, in sixteenths of a period
  std::vector<int64_t> shift;  // [2 x stage] ticks; none: 0
  int period = unit;           // sixteenths of the busiest rank's work on one microbatch
  int patience = 0;            // sixteenths of the longest W
};

Pattern random_pattern(const Instance& in, Random& random) {
  Pattern pattern;
  for (int i = 0; i < 2 * in.chunks; ++i) {
    constexpr int stretches[] = {16, 16, 16, 32, 32, 24, 48, 8, 12, 20};
    pattern.stretch.push_back(stretches[random.below(10)]);
    pattern.gap.push_back(random.below(3) == 0 ? random.below(2 * unit) : 0);
  }
  pattern.period = 14 + random.below(6);
  pattern.patience = random.below(2) == 0 ? 1 << 20 : random.below(unit);
  return pattern;
}

// With one number or a few changed.
Pattern changed(const Instance& in, Pattern pattern, Random& random) {
  const int changes = 1 + random.below(3);
  for (int i = 0; i < changes; ++i) {
    const int which = random.below(2 * in.chunks);
    switch (random.below(6)) {
      case 0:
      case 1:
        pattern.stretch[which] = std::clamp(pattern.stretch[which] + random.below(17) - 8, 1, 128);
        break;
      case 2:
        pattern.gap[which] = std::clamp(pattern.gap[which] + random.below(33) - 16, -64, 128);
        break;
      case 3:
        pattern.period = std::clamp(pattern.period + random.below(5) - 2, 8, 40);
        break;
      case 4:
        pattern.patience = random.below(3) == 0 ? 1 << 20 : random.below(2 * unit);
        break;
      default: {
        pattern.shift.resize(static_cast<size_t>(2 * in.stages));
        const int64_t step = in.busiest / in.microbatches / in.chunks;
        pattern.shift[static_cast<size_t>(random.below(2 * in.stages))] +=
            (step * (random.below(33) - 16)) / unit;
      }
    }
  }
  return pattern;
}

Priorities priorities_of(const Instance& in, const Pattern& pattern) {
  const int64_t work = std::max<int64_t>(1, in.busiest / in.microbatches);
  Priorities by;
  by.period = std::max<int64_t>(1, work * pattern.period / unit);
  by.offset.resize(static_cast<size_t>(2 * in.stages));
  int64_t longest = 0;
  int64_t at = 0;
  const auto step = [&](int which, int stage, int64_t latency) {
    const int chunk = in.chunk[stage];
    const size_t place = static_cast<size_t>(which * in.chunks + chunk);
    const bool first = which == 0 ? stage % in.ranks == 0 : stage % in.ranks == in.ranks - 1;
    if (first) at += by.period * pattern.gap[place] / unit;
    const size_t own = static_cast<size_t>(which * in.stages + stage);
    by.offset[own] = at + (pattern.shift.empty() ? 0 : pattern.shift[own]);
    const Pass pass = which == 0 ? Pass::forward : Pass::input;
    at += (in.duration(stage, pass) + latency) * pattern.stretch[place] / unit;
    longest = std::max(longest, in.duration(stage, Pass::weight));
  };
  for (int s = 0; s < in.stages; ++s) step(0, s, in.latency[s]);
  for (int s = in.stages - 1; s >= 0; --s) step(1, s, s > 0 ? in.latency[s - 1] : 0);
  by.patience = longest * pattern.patience / unit;
  return by;
}

}  // namespace

Timed best_pattern(const Instance& instance, uint64_t seed, int tries) {
  Random random(seed);
  PatternLists scheduler(instance);
  Pattern pattern;
  Timed best{.lists = {}, .end = Instance::no_bound};
  for (int i = 0; i < tries; ++i) {
    const bool anew = i == 0 || i < tries / 3;
    Pattern next = anew ? random_pattern(instance, random) : changed(instance, pattern, random);
    const Timed* ordered = scheduler.run(priorities_of(instance, next), best.end);
    if (ordered == nullptr) continue;
    best = *ordered;
    pattern = std::move(next);
  }
  return best;
}

}  // namespace pptrain::schedule

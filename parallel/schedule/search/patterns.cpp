// Lists by priorities that follow from a few numbers: a steady pattern of passes, tried at random and
// changed.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/passes/pass_clock.h"
#include "parallel/schedule/search/instance.h"

namespace pptrain::schedule {
namespace {

// The key of F or I of microbatch j is its offset + j x period: the moment that a steady pattern gives it.
// Ranks run passes ahead of their turn where they would idle, as memory allows, and W where no F or I is
// there.
struct Priorities {
  std::vector<int64_t> offset;  // [2 (F, I) x stage] ticks
  int64_t period = 1;           // ticks, positive
  int64_t patience = 0;         // a rank does not begin a W that ends later than this after its next F or I
                                // is there
};

// Whatever a rank can run next, the pass with the smallest key first. Never deadlocks: an F leaves room for
// what the rank's later chunks need to end a microbatch.
class ListScheduler {
 public:
  ListScheduler(const Instance& instance, const Priorities& priorities, int64_t limit)
      : in_(instance),
        by_(priorities),
        limit_(limit),
        ranks_(static_cast<size_t>(in_.ranks)),
        clock_(instance.shape, instance.latency) {
    result_.lists.resize(static_cast<size_t>(in_.ranks));
    for (int rank = 0; rank < in_.ranks; ++rank) prepare(rank);
  }

  // Nothing as soon as the step must end after the limit.
  std::optional<Timed> run() {
    clock_.run([this](int rank, int64_t now) { begin_next(rank, now); });
    if (result_.end > limit_) return std::nullopt;
    return std::move(result_);
  }

 private:
  static constexpr int64_t never = PassClock<int64_t>::never;
  struct Chunk {
    int forward = 0;
    int input = 0;
    int weight = 0;
  };
  struct Rank {
    std::vector<Chunk> chunks;
    int64_t held = 0;
    int64_t left = 0;  // ticks of work, and the rank's tail
  };
  struct Next {
    Pass pass = Pass::forward;
    int chunk = -1;  // none
    int64_t turn = never;
  };

  int64_t most(int rank, int chunk, Pass pass) const {
    return in_.most[in_.stage_of(rank, chunk)][static_cast<size_t>(pass)];
  }
  int64_t left(int rank, int chunk, Pass pass) const {
    return in_.left[in_.stage_of(rank, chunk)][static_cast<size_t>(pass)];
  }

  void prepare(int rank) {
    Rank& own = ranks_[rank];
    own.chunks.resize(static_cast<size_t>(in_.chunks));
    own.left = in_.tail[rank];
    for (int chunk = 0; chunk < in_.chunks; ++chunk) {
      for (const Pass pass : {Pass::forward, Pass::input, Pass::weight})
        own.left += in_.microbatches * in_.duration(in_.stage_of(rank, chunk), pass);
    }
    const int64_t needed = to_end_list(rank, /*chunk=*/0, /*list=*/0, /*forwards=*/0);
    if (needed <= in_.room[rank]) return;
    throw UsageError(
        fmt::format("rank {} has no room for one microbatch: its passes need {} bytes, there are {}", rank,
                    needed, in_.room[rank]));
  }

  // What a rank needs beside what it holds to end the n-th list (a microbatch, or all its slices), once it
  // has done so many F's of the chunk: those that are left of the list there, then those of each later chunk,
  // then any backward.
  int64_t to_end_list(int rank, int chunk, int list, int forwards) const {
    const int slices = in_.shape.sequence_slices;
    int64_t needed = 0;
    for (int c = in_.chunks - 1; c >= chunk; --c) {
      needed = std::max(
          {needed, most(rank, c, Pass::input), left(rank, c, Pass::input) + most(rank, c, Pass::weight)});
      const int done = c == chunk ? forwards : ranks_[rank].chunks[c].forward;
      const int64_t to_do = std::min(slices, (list + 1) * slices - done);
      if (to_do == 0) continue;
      const int64_t own = left(rank, c, Pass::forward), own_most = most(rank, c, Pass::forward);
      needed = std::max({own_most, (to_do - 1) * own + own_most, to_do * own + needed});
    }
    return needed;
  }

  int64_t key(Pass pass, int stage, int microbatch) const {
    const int which = pass == Pass::forward ? 0 : 1;
    return by_.offset[static_cast<size_t>(which * in_.stages + stage)] + microbatch * by_.period;
  }

  // Is there room for the chunk's F besides all F's of the rank that have an earlier turn?
  bool has_room(int rank, int chunk, int64_t turn) const {
    const Rank& own = ranks_[rank];
    const int slices = in_.shape.sequence_slices, n = own.chunks[chunk].forward, list = n / slices;
    int64_t ahead = 0;
    for (int c = 0; c < in_.chunks; ++c) {
      const int stage = in_.stage_of(rank, c);
      const int64_t first = key(Pass::forward, stage, own.chunks[c].forward);
      if (c == chunk || first >= turn) continue;
      // Only of lists that have passed this chunk: others would wait for it.
      const int passed = std::max(0, list * slices - own.chunks[c].forward);
      const int64_t number = std::min<int64_t>((turn - first - 1) / by_.period + 1, passed);
      ahead += number * std::max<int64_t>(0, left(rank, c, Pass::forward));
    }
    const int64_t held = own.held + ahead;
    const int64_t later = to_end_list(rank, chunk, list, n + 1);
    return held + most(rank, chunk, Pass::forward) <= in_.room[rank] &&
           held + left(rank, chunk, Pass::forward) + later <= in_.room[rank];
  }

  // Of the F's and I's that are there and have room, the one whose turn is first; else a W.
  void begin_next(int rank, int64_t now) {
    const Rank& own = ranks_[rank];
    Next best;
    int64_t first_there = never;  // when an F or I that has room is there
    const auto offer = [&](Pass pass, int c, int microbatch) {
      const int stage = in_.stage_of(rank, c);
      const int64_t turn = key(pass, stage, microbatch);
      const int64_t there = clock_.input(in_.action(pass, stage, microbatch));
      if (there == never || turn >= best.turn) return;
      const bool room =
          pass == Pass::forward ? has_room(rank, c, turn) : own.held + most(rank, c, pass) <= in_.room[rank];
      if (!room) return;
      first_there = std::min(first_there, there);
      if (there <= now) best = {pass, c, turn};
    };
    for (int c = 0; c < in_.chunks; ++c) {
      const Chunk& chunk = own.chunks[c];
      if (chunk.forward < in_.microbatches) offer(Pass::forward, c, chunk.forward);
      if (chunk.input < chunk.forward) offer(Pass::input, c, chunk.input);
    }
    if (best.chunk < 0) best = oldest_weight(own);
    if (best.chunk < 0) return;
    const int64_t end = now + in_.duration(in_.stage_of(rank, best.chunk), best.pass);
    if (best.pass == Pass::weight && first_there != never && end > first_there + by_.patience) return;
    finish(rank, best.pass, best.chunk, end);
  }

  // Of the chunk with the most W's to do; the later chunk of several.
  Next oldest_weight(const Rank& own) const {
    Next found;
    int most = 0;
    for (int c = in_.chunks - 1; c >= 0; --c) {
      const int waiting = own.chunks[c].input - own.chunks[c].weight;
      if (waiting > most) most = waiting, found = {Pass::weight, c};
    }
    return found;
  }

  void finish(int rank, Pass pass, int chunk, int64_t end) {
    Rank& own = ranks_[rank];
    own.held += left(rank, chunk, pass);
    own.left -= in_.duration(in_.stage_of(rank, chunk), pass);
    result_.lists[rank].push_back(in_.letter(pass, chunk));
    result_.end = std::max(result_.end, end + own.left);
    if (result_.end > limit_) return clock_.stop();
    Chunk& of = own.chunks[chunk];
    int& done = pass == Pass::forward ? of.forward : pass == Pass::input ? of.input : of.weight;
    clock_.begin(rank, in_.action(pass, in_.stage_of(rank, chunk), done++), end);
  }

  const Instance& in_;
  const Priorities& by_;
  int64_t limit_;
  std::vector<Rank> ranks_;
  PassClock<int64_t> clock_;
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
  Pattern pattern;
  Timed best{.lists = {}, .end = Instance::no_bound};
  for (int i = 0; i < tries; ++i) {
    const bool anew = i == 0 || i < tries / 3;
    Pattern next = anew ? random_pattern(instance, random) : changed(instance, pattern, random);
    std::optional<Timed> ordered = ListScheduler(instance, priorities_of(instance, next), best.end).run();
    if (!ordered) continue;
    best = *std::move(ordered);
    pattern = std::move(next);
  }
  return best;
}

}  // namespace pptrain::schedule

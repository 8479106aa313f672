#include "parallel/schedule/cost/recompute_levels.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

// Calls visit(levels by cell) for all levels of the rank's microbatches.
template <typename Visit>
void each_choice(const Schedule& s, const std::vector<size_t>& cells, int levels, const Visit& visit) {
  std::vector<int> choice(s.cells());
  const auto next = [&] {
    for (const size_t cell : cells) {
      if (++choice[cell] < levels) return true;
      choice[cell] = 0;
    }
    return false;
  };
  do visit(choice);
  while (next());
}

// Bytes and seconds of levels 0 to 2: each level keeps less and computes longer. Each microbatch has its own
// size.
struct Levels {
  Levels(const Schedule& s, bool by_cell) : schedule(s), bytes(3), seconds(3) {
    for (int level = 0; level < 3; ++level) {
      for (int stage = 0; stage < s.stages(); ++stage) {
        seconds[level].push_back(10 + (level == 0 ? 0 : 2 * level - 1) * (stage + 1));
        for (int mb = 0; mb < (by_cell ? s.microbatches : 1); ++mb)
          bytes[level].push_back(of_level(level, 1 + stage % 2 + (by_cell ? mb * 7 % 3 : 0)));
      }
    }
  }
  static StageBytes of_level(int level, int64_t size) {
    return {.activation = size * (12 - 4 * level),
            .weight_operands = size * 7,
            .workspace = {.forward = size * (1 + 3 * level),
                          .backward = size * (4 + 2 * level),
                          .backward_input = size * (3 + level),
                          .backward_weight = size},
            .message = 1};
  }
  std::vector<StageBytes> of(const std::vector<int>& levels) const {
    std::vector<StageBytes> own;
    for (size_t cell = 0; cell < schedule.cells(); ++cell) {
      const std::vector<StageBytes>& at = bytes[levels[cell]];
      own.push_back(
          at[at.size() == schedule.cells() ? cell : cell / static_cast<size_t>(schedule.microbatches)]);
    }
    return own;
  }
  double saved(const std::vector<size_t>& cells, const std::vector<int>& levels) const {
    double sum = 0;
    for (const size_t cell : cells) {
      const size_t stage = cell / static_cast<size_t>(schedule.microbatches);
      sum += seconds[2][stage] - seconds[levels[cell]][stage];
    }
    return sum;
  }

  const Schedule& schedule;
  std::vector<std::vector<StageBytes>> bytes;
  std::vector<std::vector<double>> seconds;
};

// Checks that the levels fit and that no further change fits. Returns their saving relative to the best
// choice.
double check_levels(const Schedule& s, const Levels& given, int rank, int64_t room) {
  std::vector<size_t> cells;
  for (const int stage : s.stages_of(rank)) {
    for (int mb = 0; mb < s.microbatches; ++mb) cells.push_back(s.cell(stage, mb));
  }
  const std::vector<int> start(static_cast<size_t>(s.stages()), 2);
  std::vector<int> levels = recompute_levels(s, rank, given.bytes, given.seconds, start, room);
  const auto fits = [&](const std::vector<int>& of) {
    return peak_bytes(s, given.of(of), rank).total() <= room;
  };
  CAPTURE(s.name, s.microbatches, rank, room, levels);
  CHECK(fits(levels));
  for (const size_t cell : cells) {
    const int level = levels[cell];
    for (levels[cell] = 0; levels[cell] < level; ++levels[cell]) CHECK_FALSE(fits(levels));
  }
  double best = 0;
  each_choice(s, cells, 3, [&](const std::vector<int>& choice) {
    const double saved = given.saved(cells, choice);
    if (saved > best && fits(choice)) best = saved;
  });
  return best > 0 ? given.saved(cells, levels) / best : 1;
}

}  // namespace

TEST_CASE("the levels of microbatches fit, have no room left, and save nearly what the best choice does") {
  double worst = 1, sum = 0;
  int checked = 0;
  for (const auto& [name, p, m] :
       {std::tuple("1f1b", 2, 6), std::tuple("1f1b", 3, 6), std::tuple("gpipe", 2, 5),
        std::tuple("zb_h1", 2, 5), std::tuple("zbv", 2, 4), std::tuple("interleaved_1f1b", 2, 4),
        std::tuple("dualpipe_v", 2, 4)}) {
    const Schedule compute = make_schedule({.name = name, .ranks = p, .microbatches = m});
    const Schedule s = lower(compute, {.keep_pairs = true});
    for (const bool by_cell : {false, true}) {
      const Levels given(s, by_cell);
      for (int rank = 0; rank < p; ++rank) {
        const auto peak = [&](int level) {
          return peak_bytes(s, given.of(std::vector<int>(s.cells(), level)), rank).total();
        };
        for (const int part : {0, 1, 2, 3}) {  // quarters of the way from full recompute to none
          const double saved = check_levels(s, given, rank, peak(2) + (peak(0) - peak(2)) * part / 4);
          worst = std::min(worst, saved);
          sum += saved;
          ++checked;
        }
        // Everything fits, or not even the start.
        const std::vector<int> start(static_cast<size_t>(s.stages()), 2);
        const auto levels = [&](int64_t room) {
          return recompute_levels(s, rank, given.bytes, given.seconds, start, room);
        };
        CHECK(levels(peak(0)) == std::vector<int>(s.cells(), 0));
        for (const int stage : s.stages_of(rank)) CHECK(levels(peak(2) - 1)[s.cell(stage, 0)] == 2);
      }
    }
  }
  CHECK(worst > 0.75);
  CHECK(sum / checked > 0.98);
}

TEST_CASE("under 1f1b as many equal microbatches of a rank keep all as the room is for") {
  for (const int m : {8, 23, 512}) {
    const Schedule s = lower(make_schedule({.name = "1f1b", .ranks = 8, .microbatches = m}));
    const std::vector<std::vector<StageBytes>> bytes{std::vector<StageBytes>(8, {.activation = 5}),
                                                     std::vector<StageBytes>(8, {.activation = 2})};
    const std::vector<std::vector<double>> seconds{std::vector<double>(8, 1), std::vector<double>(8, 2)};
    const std::vector<int> start(8, 1);
    for (int rank = 0; rank < 8; ++rank) {
      const int held = std::min(8 - rank, m);
      for (int room = 0; room <= held; ++room) {
        const std::vector<int> levels =
            recompute_levels(s, rank, bytes, seconds, start, 2 * held + 3 * room + 2);
        CAPTURE(m, rank, room);
        for (int mb = 0; mb < m; ++mb)
          CHECK(levels[s.cell(rank, mb)] == ((m - 1 - mb) % held < room ? 0 : 1));
      }
    }
  }
}

TEST_CASE("a level that saves no time is not taken, whatever room there is") {
  const Schedule s = lower(make_schedule({.name = "1f1b", .ranks = 1, .microbatches = 2}));
  const std::vector<std::vector<StageBytes>> bytes{std::vector<StageBytes>(1, {.activation = 5}),
                                                   std::vector<StageBytes>(1, {.activation = 2})};
  const std::vector<std::vector<double>> seconds(2, std::vector<double>(1, 1.0));
  const std::vector<int> start(1, 1);
  CHECK(recompute_levels(s, 0, bytes, seconds, start, 1000) == std::vector<int>{1, 1});
}

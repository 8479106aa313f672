#include "parallel/schedule/cost/memory.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

std::vector<MemorySplit> uniform(const Schedule& s, const StageBytes& stage) {
  return peak_bytes(s, std::vector<StageBytes>(s.stages(), stage));
}

// With one byte for each thing that in_flight counts, the peaks are its counts.
void check_unit_bytes(const Schedule& s) {
  const auto counts = in_flight(s);
  const auto activations = uniform(s, {.activation = 1});
  const auto operands = uniform(s, {.weight_operands = 1});
  const auto both = uniform(s, {.activation = 1, .weight_operands = 1});
  const auto messages = uniform(s, {.message = 1});
  for (int r = 0; r < s.ranks; ++r) {
    CAPTURE(s.name, s.ranks, s.stages_per_rank, s.microbatches, r);
    CHECK(activations[r].total() == counts[r].activations);
    CHECK(operands[r].total() == counts[r].weight_operands);
    CHECK(both[r].total() == counts[r].held);
    CHECK(messages[r].buffers >= counts[r].receive_buffers);
  }
}

}  // namespace

TEST_CASE("with unit bytes the peaks are the counts, in every schedule") {
  int checked = 0;
  for (const std::string& name : schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (int m = 1; m <= 8; ++m) {
        Schedule s;
        try {
          s = make_schedule({.name = name, .ranks = p, .microbatches = m});
        } catch (const UsageError&) {
          continue;
        }
        if (s.forward_only) continue;
        check_unit_bytes(s);
        check_unit_bytes(lower(s));
        ++checked;
      }
    }
  }
  CHECK(checked > 200);
}

TEST_CASE("stages of unequal size: the peak is where the bytes are, not the count") {
  // One rank, stages 0 and 1: two microbatches of the small stage, one of the large.
  const Schedule s = parse_csv("0F0,0F1,1F0,1B0,0B0,1F1,1B1,0B1\n");
  REQUIRE(s.stages() == 2);
  const std::vector<StageBytes> stages = {
      {.activation = 10, .workspace_forward = 3, .workspace_backward = 4},
      {.activation = 100, .workspace_forward = 30, .workspace_backward = 20, .message = 7}};
  const MemorySplit rank = peak_bytes(s, stages)[0];
  CHECK(rank.activations == 120);
  CHECK(rank.workspace == 30);
  CHECK(rank.weight_operands == 0);
  // Outputs of both forwards of stage 0 waited for stage 1, which has taken the first.
  CHECK(rank.buffers == 7);
  CHECK(peak_bytes(s, std::vector<StageBytes>{{}, {.message = 7}})[0].buffers == 14);
}

TEST_CASE("operands that I leaves wait for W, and each action has its own workspace") {
  const Schedule s = parse_csv("0F0,0I0,0F1,0W0,0B1\n");
  const MemorySplit rank = uniform(s, {.activation = 10,
                                       .weight_operands = 8,
                                       .workspace_forward = 1,
                                       .workspace_backward = 2,
                                       .workspace_backward_input = 5,
                                       .workspace_backward_weight = 3})[0];
  CHECK(rank.total() == 21);  // W0 runs while F1's activations are there
  CHECK(rank.activations == 10);
  CHECK(rank.weight_operands == 8);
  CHECK(rank.workspace == 3);
}

TEST_CASE("messages: a receive from its post, an output to one action after its send") {
  const Schedule s = parse_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
      "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  const auto ranks = uniform(s, {.message = 5});
  CHECK(ranks[0].buffers == 10);  // F1's output next to F0's, which leaves; then the two receives
  CHECK(ranks[1].buffers == 10);
  // Without communication nothing is held for it.
  CHECK(uniform(parse_csv("0F0,0B0\n1F0,1B0\n"), {.message = 5})[0].buffers == 0);
}

TEST_CASE("a forward-only schedule keeps nothing from one forward to the next") {
  const auto ranks =
      uniform(parse_csv("0F0,0F1\n1F0,1F1\n"), {.activation = 10, .workspace_forward = 2, .message = 0});
  CHECK(ranks[0].activations == 10);
  CHECK(ranks[0].total() == 12);
}

TEST_CASE("gathered weights are there from UNSHARD to RESHARD") {
  const auto gathered = [](const char* csv) {
    return uniform(parse_csv(csv), {.activation = 10, .gathered = 7})[0];
  };
  CHECK(gathered("0F0,0F1,0B0,0B1\n").gathered == 0);
  CHECK(gathered("0UNSHARD,0F0,0F1,0B0,0B1\n").total() == 27);
  // Both stages at once while the second's forward runs, but only one microbatch's activations.
  const MemorySplit two = gathered("0UNSHARD,0F0,1UNSHARD,0RESHARD,1F0,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  CHECK(two.activations == 20);
  CHECK(two.total() == 34);
  CHECK(two.gathered == 14);
  CHECK(gathered("0UNSHARD,0F0,0I0,0RESHARD,0W0\n").total() == 17);
}

TEST_CASE("gradients on their way are held to the end of the next compute action") {
  const MemorySplit rank =
      uniform(parse_csv("0F0,0F1,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD\n"), {.activation = 1, .reducing = 4})[0];
  CHECK(rank.total() == 9);  // B1: its activations, its gradients and those of B0
  CHECK(rank.reducing == 8);
  CHECK(
      uniform(parse_csv("0F0,0F1,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD\n"), {.activation = 100, .reducing = 4})[0]
          .total() == 204);
}

TEST_CASE("bytes of another number of stages are refused") {
  CHECK_THROWS_AS(peak_bytes(parse_csv("0F0,0B0\n1F0,1B0\n"), std::vector<StageBytes>(3)), Error);
}

TEST_CASE("microbatches of other sizes count as much as they have") {
  const Schedule s = parse_csv("0F0,0F1,0B0,0F2,0B1,0B2\n");
  const auto peak = [&](int64_t first, int64_t second, int64_t third) {
    return peak_bytes(s, std::vector<StageBytes>{{.activation = first, .workspace_backward = first},
                                                 {.activation = second, .workspace_backward = 5},
                                                 {.activation = third, .workspace_forward = 1}})[0]
        .total();
  };
  CHECK(peak(10, 20, 30) == 55);    // B1 beside the records of F2
  CHECK(peak(100, 20, 30) == 220);  // B0
  CHECK(peak(1, 1, 1) == 7);
}

namespace {

// All levels of the rank's microbatches: visit(levels by cell).
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

// Of levels 0 to 2, of which each keeps less and computes longer, in a size of its own for each microbatch.
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
            .workspace_forward = size * (1 + 3 * level),
            .workspace_backward = size * (4 + 2 * level),
            .workspace_backward_input = size * (3 + level),
            .workspace_backward_weight = size,
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

// Fits, leaves no change that fits too, and saves nearly as much as the best of all choices. Returns its part
// of that.
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
        for (const int part : {0, 1, 2, 3}) {  // of the way from all to nothing that is computed again
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

TEST_CASE("I frees all but what W needs") {
  const InFlight split = in_flight(parse_csv("0F0,0F1,0I0,0I1,0W0,0W1"))[0];
  CHECK(split.activations == 2);
  CHECK(split.weight_operands == 2);
  CHECK(split.held == 2);
  const InFlight turn = in_flight(parse_csv("0F0,0I0,0F1,0I1,0W0,0W1"))[0];
  CHECK(turn.activations == 1);
  CHECK(turn.weight_operands == 2);
  CHECK(turn.held == 2);
}

TEST_CASE("an overlapped pair holds both of its microbatches at once") {
  const Schedule s = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  CHECK(in_flight(s)[0].activations == 2);
}

TEST_CASE("receive buffers live from the receive to the end of its consumer") {
  const auto peaks =
      in_flight(parse_csv("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1\n"
                          "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"));
  CHECK(peaks[0].receive_buffers == 2);
  CHECK(peaks[1].receive_buffers == 1);
  CHECK(in_flight(parse_csv("0F0,0B0\n1F0,1B0\n"))[1].receive_buffers == 0);
}

TEST_CASE("a forward-only schedule keeps nothing") {
  CHECK(in_flight(parse_csv("0F0,0F1\n1F0,1F1\n"))[0].activations == 0);
}

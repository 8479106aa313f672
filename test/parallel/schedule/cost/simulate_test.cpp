#include "parallel/schedule/cost/simulate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

using namespace pptrain;
using namespace pptrain::schedule;

TEST_CASE("gpipe and 1f1b idle (p - 1)(F + B) on every rank") {
  const StageCost cost = passes_of(3, 4, 2);
  for (const std::string name : {"gpipe", "1f1b"}) {
    for (int p = 1; p <= 9; ++p) {
      for (const int m : {p, p + 1, 2 * p, 31}) {
        const Schedule compute = make_schedule({.name = name, .ranks = p, .microbatches = m});
        for (const Schedule& s : {compute, lower(compute)}) {
          const Simulation result = simulate(s, {.stages = {cost}, .latency = {}});
          CHECK(result.step_time == (m + p - 1) * 9);
          for (int r = 0; r < p; ++r) {
            CHECK(result.ranks[r].busy == m * 9);
            CHECK(result.ranks[r].idle() == (p - 1) * 9);
            CHECK(result.ranks[r].fill == (name == "gpipe" ? p - 1 : r) * 3 + (p - 1 - r) * 6);
            CHECK(result.ranks[r].wait_for_transfer == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("microbatches of one stage may take different times") {
  const Schedule s = parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const StageCost quick = passes_of(1, 1, 1, 1), slow = passes_of(1, 1, 1, 5);
  const auto step = [&](const std::vector<StageCost>& cells) {
    return simulate(s, {.stages = {quick}, .latency = {}, .cells = cells}).step_time;
  };
  CHECK(step({quick, quick, quick, quick}) == simulate(s, {.stages = {quick}, .latency = {}}).step_time);
  CHECK(step({quick, quick, quick, quick}) == 6);
  CHECK(step({slow, quick, quick, quick}) == 9);  // rank 0 waited for rank 1 before B0 and before B1
  CHECK(step({quick, slow, quick, quick}) == 10);
  CHECK(step({quick, quick, slow, quick}) == 10);
  CHECK(step({quick, quick, quick, slow}) == 10);
  CHECK_THROWS_AS(step({quick, quick, slow}), Error);
  CHECK(cost_of({.stages = {quick}, .latency = {}, .cells = {quick, quick, slow, quick}}, s, backward(1, 0))
            .time.backward == 5);
}

TEST_CASE("the bubble fraction is the textbook's") {
  const auto bubble = [](int p, int m) {
    return simulate(make_schedule({.name = "1f1b", .ranks = p, .microbatches = m})).bubble();
  };
  CHECK(bubble(2, 4) == Approx(0.20).epsilon(1e-12));
  CHECK(bubble(2, 2) == Approx(1.0 / 3).epsilon(1e-12));
  CHECK(bubble(8, 32) == Approx(7.0 / 39).epsilon(1e-12));
}

namespace {

struct Times {
  double f, i, w;
};

Simulation run(const std::string& name, int p, int m, int v, Times t, double wire = 0) {
  const Schedule s = make_schedule({.name = name, .ranks = p, .microbatches = m, .stages_per_rank = v});
  StageCost cost = passes_of(t.f, t.i, t.w);
  cost.wire.forward = wire;
  return simulate(s, {.stages = {cost}, .latency = {}});
}

}  // namespace

TEST_CASE("interleaved and breadth-first idle (p - 1)(F + B) / v of a rank's times") {
  const Times t{3, 4, 2};  // of one stage; a rank has v stages
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int rounds = 1; rounds <= 4; ++rounds) {
        const int m = rounds * p;
        for (const std::string name : {"interleaved_1f1b", "looped_bfs"}) {
          CHECK(run(name, p, m, v, t).step_time == (m * v + p - 1) * 9);
        }
      }
    }
  }
}

TEST_CASE("zb_h1 and interleaved_zb idle (p - 1)(F + I - W) / v") {
  for (const Times t : {Times{1, 1, 1}, Times{10, 12, 8}, Times{4, 5, 3}}) {
    for (int p = 1; p <= 8; ++p) {
      for (int rounds = 2; rounds <= 4; ++rounds) {
        const int m = rounds * p;
        const double idle = (p - 1) * (t.f + t.i - t.w);
        CHECK(run("zb_h1", p, m, 1, t).step_time == m * (t.f + t.i + t.w) + idle);
        for (int v = 1; v <= 3; ++v) {
          CHECK(run("interleaved_zb", p, m, v, t).step_time == m * v * (t.f + t.i + t.w) + idle);
        }
      }
    }
  }
}

TEST_CASE("zb_h2 and zbv have no gap inside the parallelogram if F = I = W") {
  for (int p = 1; p <= 10; ++p) {
    for (const int m : {2 * p - 1, 2 * p, 4 * p + 1}) {
      const Simulation h2 = run("zb_h2", p, m, 1, {1, 1, 1});
      CHECK(h2.step_time == 3 * m + p - 1);
      const Simulation v = run("zbv", p, m, 2, {1, 1, 1});
      CHECK(v.step_time == 6 * m + p - 1);
      CHECK(v.bubble() == Approx((p - 1.0) / (6 * m + p - 1)).epsilon(1e-12));
      for (const Simulation& s : {h2, v}) {
        for (int r = 0; r < p; ++r)
          CHECK(s.spans[r].back().end - s.spans[r].front().start == s.ranks[r].busy);
      }
    }
  }
}

TEST_CASE("dualpipe_v idles (P/2 - 1)(F&B + B - 3W) for P = 2p stages, if F = I = W") {
  for (int p = 1; p <= 10; ++p) {
    for (const int m : {2 * p, 2 * p + 1, 4 * p}) {
      for (const double wire : {0.0, 1.0}) {
        const Simulation s = run("dualpipe_v", p, m, 2, {2, 2, 2}, wire);
        const double pair = 6 - wire;
        // The last rank runs the most pairs: all of its steady phase but the first forward and backward.
        const double saved = (6 - pair) * (2 * (m - p) - 1);
        CHECK(s.step_time == Approx(12 * m - saved + (p - 1) * (pair + 4 - 6)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("wall bubbles of 8 ranks and 32 microbatches, F = I = W") {
  // Measured once with another simulator, in percent.
  const std::pair<const char*, double> equal[] = {
      {"1f1b", 17.9},          {"zb_h1", 6.8},      {"zb_h2", 6.8},  {"zbv", 3.5},
      {"interleaved_zb", 3.5}, {"dualpipe_v", 6.8}, {"v_half", 8.1}, {"v_min", 12.3}};
  for (const auto& [name, percent] : equal) {
    INFO(name);
    CHECK(std::abs(100 * run(name, 8, 32, 0, {1, 1, 1}).bubble() - percent) <= 0.0501);
  }
  CHECK(std::abs(100 * run("v_min", 8, 32, 0, {1, 1.2, 0.8}).bubble() - 25.8) <= 0.0501);
}

TEST_CASE("unequal stages, a B of its own, transfers and pairs count as they cost") {
  // Rank 1: F0 waits until 1 + 0.5; its F takes 2, its B 10.
  const Schedule s = parse_csv("0F0,0B0\n1F0,1B0\n");
  const Costs costs{.stages = {passes_of(1, 1, 1), passes_of(2, 1, 1, 10)}, .latency = {0.5}};
  const Simulation result = simulate(s, costs);
  CHECK(result.spans[1][0].start == 1.5);
  CHECK(result.spans[1][1].end == 13.5);
  CHECK(result.spans[0][1].start == 14);
  CHECK(result.step_time == 16);
  CHECK(result.ranks[0].wait_for_transfer == 0.5);
  CHECK(result.ranks[1].wait_for_transfer == 0.5);
  CHECK(result.ranks[0].busy == 3);
  CHECK(result.ranks[1].drain == 0);
  CHECK(result.ranks[1].barrier == 2.5);

  const Schedule pair = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1");
  // In 1 + 2, the forward waits 0.75 and the backward 1.5; 1.25 of the waiting overlaps with nothing.
  CHECK(pair_duration({.wire = {.forward = 0.75}}, {.wire = {.backward = 1.5}}, ActionKind::backward) ==
        0.25 + 0.5 + 0.25 + 1.25);
  CHECK(simulate(pair, {.stages = {{.wire = {.forward = 0.75}}}, .latency = {}}).step_time == 1 + 2.25 + 2);

  CHECK_THROWS_AS(simulate(s, {.stages = {{}, {}, {}}, .latency = {}}), Error);
  CHECK_THROWS_AS(simulate(s, {.stages = {}, .latency = {1, 2}}), Error);
  CHECK_THROWS_AS(simulate(parse_csv("0B0,0F0\n1F0,1B0\n")), Error);
}

TEST_CASE("a transfer begins when its receive is posted") {
  const Costs costs{.stages = {}, .latency = {1}};
  const Schedule late = parse_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  CHECK(simulate(late, costs).spans[1][1].start == 2);
  const Schedule s = parse_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  // 1F0 in [2, 3], 1B0 in [3, 5]; only then is 1RECV_F1 posted, and its data takes 1.
  CHECK(simulate(s, costs).spans[1][5].start == 6);
}

TEST_CASE("forward only: fill before the first forward, barrier after the last") {
  const Simulation result = simulate(parse_csv("0F0,0F1,0F2\n1F0,1F1,1F2\n"));
  CHECK(result.ranks[0].fill == 0);
  CHECK(result.ranks[0].barrier == 1);
  CHECK(result.ranks[1].fill == 1);
  CHECK(result.ranks[1].barrier == 0);
}

TEST_CASE("64 ranks and 4096 microbatches take under two seconds", "[clock]") {
  const auto begin = std::chrono::steady_clock::now();
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 64, .microbatches = 4096});
  validate(s);
  const Simulation result = simulate(s);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(result.step_time == (4096 + 63) * 3);
  INFO("generated, validated and simulated in " << seconds << " s");
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  CHECK(seconds < 2);
#endif
  for (const std::string name : {"zbv", "v_half", "dualpipe_v"}) {
    CHECK_NOTHROW(validate(make_schedule({.name = name, .ranks = 64, .microbatches = 1024})));
  }
}

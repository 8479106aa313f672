// The cost of gathering weights and reducing gradients, by hand: F takes 4, B 8, a stage has 4 groups.
#include "core/base/error.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

Simulation run(const char* csv, ExchangeCost exchange, bool streamed = false) {
  return simulate(
      parse_csv(csv),
      {.stages = {passes_of(4, 4, 4)}, .latency = {}, .exchange = {exchange}, .streamed = streamed});
}

std::vector<double> ends(const Simulation& s) {
  std::vector<double> ends;
  for (const Span& span : s.spans[0]) ends.push_back(span.end);
  return ends;
}

using Times = std::vector<double>;

}  // namespace

TEST_CASE("kept weights are waited for once: for the first group, or for the last if gathers are slower") {
  const char* list = "0UNSHARD,0F0,0B0,0F1,0B1,0RESHARD\n";
  const Simulation fast = run(list, {.gather = 2, .groups = 4});
  CHECK(ends(fast) == Times{2, 4.5, 12.5, 16.5, 24.5, 24.5});
  CHECK(fast.ranks[0].wait_for_exchange == 0.5);
  CHECK(fast.ranks[0].busy == 24.5);
  CHECK(fast.bubble() == 0);
  // The last group is there at 40; the forward through it takes 1.
  CHECK(ends(run(list, {.gather = 40, .groups = 4})) == Times{40, 41, 49, 53, 61, 61});
}

TEST_CASE("groups at the ends may be other parts of the exchange, and of a forward, than those between") {
  const Simulation s =
      run("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n",
          {.gather = 10, .reduce = 8, .groups = 4, .first_gather = .6, .last_time = .5, .last_reduce = .75});
  // The forward computes from 6 on, and for 2 after 10. The backward ends at 20, and then 6 are left to sum.
  CHECK(ends(s) == Times{10, 12, 20, 26, 20});
  CHECK(s.step_time == 26);
}

TEST_CASE("gathers of two stages follow each other, and the second runs behind the first one's pass") {
  const Simulation s = run("0UNSHARD,1UNSHARD,0F0,1F0,1B0,0B0\n", {.gather = 4, .groups = 4});
  // 0F0 begins at 1 and ends at 5; stage 1 is gathered from 4 to 8, its forward waits for the last group.
  CHECK(s.spans[0][1].start == 4);
  CHECK(ends(s) == Times{4, 8, 5, 9, 17, 25});
  CHECK(s.ranks[0].wait_for_exchange == 1);
}

TEST_CASE("streamed passes take as long as their gather, and show the first group's unless the pass turns") {
  const char* list = "0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD\n";
  const Simulation fast = run(list, {.gather = 2, .groups = 4}, true);
  CHECK(ends(fast) == Times{0.5, 4.5, 9, 17, 25.5, 25.5});
  CHECK(fast.ranks[0].wait_for_exchange == 1.5);
  CHECK(ends(run(list, {.gather = 16, .groups = 4}, true)) == Times{4, 17, 34, 48, 66, 66});
}

TEST_CASE("streamed, the first group of the next stage comes behind the action before") {
  const Schedule two = add_unshard(parse_csv("0F0,1F0,1B0,0B0\n"), Gather::streamed);
  const Simulation s = simulate(two, {.stages = {passes_of(4, 4, 4)},
                                      .latency = {},
                                      .exchange = {{.gather = 2, .groups = 4}},
                                      .streamed = true});
  REQUIRE(write_csv(two) == "0UNSHARD,1UNSHARD,0F0,0RESHARD,1F0,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  CHECK(ends(s) == Times{0.5, 1, 4.5, 4.5, 8.5, 9, 16.5, 16.5, 24.5, 24.5});
}

TEST_CASE("a step ends with its reductions, of which the last backward hides all but the last group's") {
  const char* list = "0F0,0B0,0F1,0B1,0REDUCE_GRAD\n";
  const Simulation fast = run(list, {.reduce = 4, .groups = 4});
  CHECK(fast.spans[0][4].start == 18);  // one of four groups of the backward from 16 to 24 is done
  CHECK(fast.step_time == 25);
  CHECK(fast.ends == Times{25});
  CHECK(fast.ranks[0].reducing == 1);
  CHECK(fast.ranks[0].barrier == 1);
  CHECK(run(list, {.reduce = 20, .groups = 4}).step_time == 38);
  // Stage 1 waits for nothing, but stage 0's backward stands between its own and its reduction.
  const Simulation two = run("0F0,1F0,1B0,0B0,1REDUCE_GRAD,0REDUCE_GRAD\n", {.reduce = 4, .groups = 4});
  CHECK(two.spans[0][4].start == 24);
  CHECK(two.spans[0][5].start == 28);
  CHECK(two.step_time == 32);
}

TEST_CASE("reduced after each microbatch, a backward waits for the buffers of the one before") {
  const Schedule list = parse_csv("0F0,0B0,0REDUCE_GRAD,0F1,0B1,0REDUCE_GRAD\n");
  const Simulation s = simulate(
      list, {.stages = {passes_of(1, 1, 1)}, .latency = {}, .exchange = {{.reduce = 6, .groups = 2}}});
  CHECK(s.spans[0][2].start == 2);
  CHECK(ends(s) == Times{1, 3, 8, 4, 9, 14});  // the second backward's last group waits until 8
  CHECK(s.ranks[0].wait_for_exchange == 3);
  CHECK(s.ranks[0].reducing == 5);
}

TEST_CASE("exchanges that take no time change nothing, and long ones take the step") {
  const Schedule made = make_schedule({.name = "interleaved_1f1b", .ranks = 4, .microbatches = 8});
  const double whole = simulate(lower(made)).step_time;
  for (const bool streamed : {false, true}) {
    for (const Reduce reduce : {Reduce::step, Reduce::microbatch}) {
      const Schedule s =
          lower(made, {.gather = streamed ? Gather::streamed : Gather::kept, .reduce = reduce});
      Costs costs{.stages = {}, .latency = {}, .exchange = {{}}, .streamed = streamed};
      CHECK(simulate(s, costs).step_time == whole);
      costs.exchange = {{.gather = 0.25, .reduce = 0.25, .groups = 8}};
      const double step = simulate(s, costs).step_time;
      CHECK(step > whole);
      CHECK(step < whole * 1.1);
    }
  }
  CHECK_THROWS_AS(simulate(made, {.stages = {}, .latency = {}, .exchange = {{}, {}}}), Error);
}

TEST_CASE("streamed, forwards begin with a first group of its own size, backwards with an equal part") {
  CHECK(ends(run("0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD\n", {.gather = 2, .groups = 4, .first_gather = .75},
                 true)) == Times{1.5, 5.5, 11, 19, 27.5, 27.5});
}

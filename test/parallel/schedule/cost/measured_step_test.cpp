// The split of a measured step: by hand, and against the simulation, which has the same definitions.
#include "parallel/schedule/cost/measured_step.h"

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

// A simulated step as if it had been measured.
std::vector<RankStep> as_measured(const Schedule& schedule, const Simulation& simulation) {
  std::vector<RankStep> ranks;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    RankStep& step = ranks.emplace_back();
    step.step = {0, simulation.step_time};
    for (size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      if (!is_communication(schedule.actions[rank][i].kind)) {
        step.actions.push_back(simulation.spans[rank][i]);
      }
    }
  }
  return ranks;
}

void check_equal(const RankTime& measured, const RankTime& simulated) {
  CHECK(measured.busy == Approx(simulated.busy).margin(1e-9));
  CHECK(measured.fill == Approx(simulated.fill).margin(1e-9));
  CHECK(measured.steady == Approx(simulated.steady).margin(1e-9));
  CHECK(measured.drain == Approx(simulated.drain).margin(1e-9));
  CHECK(measured.barrier == Approx(simulated.barrier).margin(1e-9));
  CHECK(measured.wait_for_transfer == Approx(simulated.wait_for_transfer).margin(1e-9));
}

}  // namespace

TEST_CASE("a simulated step splits as the simulation says") {
  for (const std::string name : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv"}) {
    for (const int p : {1, 2, 3, 4}) {
      const int v = name == "interleaved_1f1b" ? 2 : 0;
      const Schedule s =
          lower(make_schedule({.name = name, .ranks = p, .microbatches = 2 * p, .stages_per_rank = v}));
      Costs costs{.stages = {}, .latency = {0.25}};
      for (int stage = 0; stage < s.stages(); ++stage) {
        costs.stages.push_back(passes_of(1.0 + 0.1 * stage, 1.5, 0.5 + 0.2 * (stage % 2)));
      }
      const Simulation simulation = simulate(s, costs);
      const auto split = split_step(s, as_measured(s, simulation));
      CAPTURE(name, p);
      REQUIRE(split.size() == simulation.ranks.size());
      for (size_t rank = 0; rank < split.size(); ++rank) check_equal(split[rank], simulation.ranks[rank]);
    }
  }
}

TEST_CASE("a step by hand: work is busy, what comes after the input was made is the transfer") {
  const Schedule s = parse_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  // Rank 0 loads data in [0, 1] and steps the optimizer in [19, 20].
  const std::vector<RankStep> ranks = {
      {.step = {0, 21}, .actions = {{1, 2}, {2, 3}, {8, 10}, {15, 17}}, .work = {{0, 1}, {19, 20}}},
      {.step = {0, 21}, .actions = {{3, 5}, {5, 7}, {7.5, 9.5}, {10, 14}}, .work = {{16, 20}}},
  };
  const auto split = split_step(s, ranks);
  CHECK(split[0].busy == 8);
  CHECK(split[0].fill == 5);               // [3, 8]
  CHECK(split[0].steady == 0);             // its last forward ends before its first backward begins
  CHECK(split[0].drain == 5);              // [10, 15]
  CHECK(split[0].barrier == 3);            // [17, 19], [20, 21]
  CHECK(split[0].wait_for_transfer == 2);  // 1B0 was made at 7, 1B1 at 14
  CHECK(split[1].busy == 14);
  CHECK(split[1].fill == 3);               // [0, 3]
  CHECK(split[1].steady == 0.5);           // [7, 7.5]
  CHECK(split[1].drain == 0.5);            // [9.5, 10]
  CHECK(split[1].barrier == 3);            // [14, 16], [20, 21]
  CHECK(split[1].wait_for_transfer == 2);  // 0F0 was made at 2, 0F1 long before 7; B1 has its input at 9.5
  for (const RankTime& time : split) CHECK(time.busy + time.idle() == 21);
}

TEST_CASE("times that are not the schedule's are refused") {
  const Schedule s = parse_csv("0F0,0B0\n1F0,1B0\n");
  const RankStep right{.step = {0, 4}, .actions = {{0, 1}, {2, 3}}, .work = {}};
  CHECK_THROWS_AS(split_step(s, std::vector{right}), Error);
  CHECK_THROWS_AS(split_step(s, std::vector{right, RankStep{}}), Error);
  CHECK_NOTHROW(split_step(s, std::vector{right, right}));
}

TEST_CASE("timed actions are all but sends and receives, pairs by halves") {
  const Schedule s = parse_csv("0F0,0SEND_F0,(0F1;0B0)OVERLAP_F_B,0RECV_B1,0B1,0REDUCE_GRAD");
  std::string text;
  for (const Action& action : timed_actions(s.actions[0])) text += to_string(action) + " ";
  CHECK(text == "0F0 0F1 0B0 0B1 0REDUCE_GRAD ");
}

TEST_CASE("a simulated step of a spread head splits as the simulation says") {
  Costs costs{.stages = {passes_of(1, 1.5, .5)}, .latency = {.25}};
  costs.stages[0].time.head_forward = .3;
  costs.stages[0].time.head_backward = .7;
  costs.head_latency = .125;
  for (const std::string name : {"1f1b", "zb_h1", "zbv"}) {
    for (const int p : {2, 4}) {
      const Schedule s =
          lower(spread_head(make_schedule({.name = name, .ranks = p, .microbatches = 2 * p}), costs));
      const Simulation simulation = simulate(s, costs);
      const auto split = split_step(s, as_measured(s, simulation));
      CAPTURE(name, p);
      for (size_t rank = 0; rank < split.size(); ++rank) check_equal(split[rank], simulation.ranks[rank]);
    }
  }
}

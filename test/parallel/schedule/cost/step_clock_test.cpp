// Ends of steps with microbatches of any size, against the simulation and against times found by repetition.
#include "parallel/schedule/cost/step_clock.h"

#include <algorithm>
#include <random>

#include "core/base/error.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;

namespace {

SizedCost drawn(std::mt19937& random) {
  const auto below = [&](int most) { return static_cast<int64_t>(random() % static_cast<unsigned>(most)); };
  return {.fixed = below(50), .token = below(9), .square = below(3)};
}

SizedCosts drawn_costs(int stages, std::mt19937& random) {
  SizedCosts costs;
  for (int stage = 0; stage < stages; ++stage) {
    const auto any = [&](ActionKind) { return drawn(random); };
    StageSizedCosts& own = costs.emplace_back();
    own.passes = PerPass<SizedCost>::each(any);
    own.transfer = drawn(random);
    own.head_transfer = drawn(random);
  }
  return costs;
}

struct Sizes {
  std::vector<int64_t> tokens, squares;
};
Sizes drawn_sizes(int microbatches, bool alike, std::mt19937& random) {
  Sizes sizes;
  for (int j = 0; j < microbatches; ++j) {
    sizes.tokens.push_back(alike && j > 0 ? sizes.tokens[0] : 1 + static_cast<int64_t>(random() % 30));
    sizes.squares.push_back(sizes.tokens.back() * 7);
  }
  return sizes;
}

std::vector<Schedule> schedules() {
  std::vector<Schedule> all;
  for (const std::string& name : training_schedule_names()) {
    for (const int microbatches : {4, 12}) {
      try {
        ScheduleSpec spec;
        spec.name = name;
        spec.ranks = 4;
        spec.microbatches = microbatches;
        const Schedule compute = make_schedule(spec);
        all.push_back(lower(compute));
        all.push_back(lower(spread_head(compute, {})));
        all.push_back(lower(in_sequence_slices(compute, 2)));
      } catch (const UsageError&) {  // it does not exist for these numbers
      }
    }
  }
  return all;
}

// Computes every action's end from all others again and again until none changes.
int64_t by_repetition(const Schedule& s, const SizedCosts& costs, const Sizes& sizes) {
  std::vector<int64_t> f(s.cells()), b(s.cells()), posted_f(s.cells()), posted_b(s.cells());
  std::vector<std::vector<int64_t>> of_s(s.microbatches, std::vector<int64_t>(s.ranks)), of_t = of_s;
  const int last_stage = s.stages() - 1;
  int64_t last = 0;
  for (bool changed = true; changed;) {
    changed = false;
    const auto set = [&](int64_t& at, int64_t to) {
      changed = changed || at != to;
      at = to;
    };
    last = 0;
    for (int rank = 0; rank < s.ranks; ++rank) {
      int64_t now = 0;
      for (const Action& a : s.actions[rank]) {
        if (!is_compute(a.kind) && !is_receive(a.kind)) continue;
        const size_t own = s.cell(a.stage, a.microbatch);
        const auto of = [&](const SizedCost& cost) {
          const auto j = static_cast<size_t>(a.microbatch / s.sequence_slices);
          return cost.fixed + cost.token * sizes.tokens[j] + cost.square * sizes.squares[j];
        };
        if (a.kind == ActionKind::recv_f) set(posted_f[own], now);
        if (a.kind == ActionKind::recv_b) set(posted_b[own], now);
        if (is_receive(a.kind)) continue;
        int64_t arrived = 0;
        if (a.kind == ActionKind::forward && a.stage > 0) {
          arrived = f[s.cell(a.stage - 1, a.microbatch)];
          if (s.crosses_ranks(a.stage - 1))
            arrived = std::max(arrived, posted_f[own]) + of(costs[a.stage - 1].transfer);
        } else if (is_gradient(a.kind) && a.stage + 1 < s.stages()) {
          arrived = b[s.cell(a.stage + 1, a.microbatch)];
          if (s.crosses_ranks(a.stage))
            arrived = std::max(arrived, posted_b[own]) + of(costs[a.stage].transfer);
        } else if (is_gradient(a.kind) && s.spread_head) {
          arrived = std::ranges::max(of_t[a.microbatch]) + of(costs[a.stage].head_transfer);
        } else if (a.kind == ActionKind::head_forward) {
          arrived = f[s.cell(last_stage, a.microbatch)];
          if (rank != s.rank_of(last_stage)) arrived += of(costs[a.stage].head_transfer);
        } else if (a.kind == ActionKind::head_backward) {
          arrived = std::ranges::max(of_s[a.microbatch]);
        }
        now = std::max(now, arrived) + of(costs[a.stage].passes.of(a.kind));
        if (a.kind == ActionKind::forward) set(f[own], now);
        if (is_gradient(a.kind)) set(b[own], now);
        if (a.kind == ActionKind::head_forward) set(of_s[a.microbatch][rank], now);
        if (a.kind == ActionKind::head_backward) set(of_t[a.microbatch][rank], now);
      }
      last = std::max(last, now);
    }
  }
  return last;
}

}  // namespace

TEST_CASE("a step of equal microbatches ends when the simulation says") {
  std::mt19937 random(1);
  for (const Schedule& s : schedules()) {
    SizedCosts costs = drawn_costs(s.stages(), random);
    for (auto& stage : costs) stage.head_transfer = costs[0].head_transfer;  // the simulation knows one
    const Sizes sizes = drawn_sizes(s.microbatches, /*alike=*/true, random);
    Costs simulated;
    const auto seconds = [&](const SizedCost& cost) {
      return static_cast<double>(cost.of(sizes.tokens[0], sizes.squares[0]));
    };
    for (const StageSizedCosts& stage : costs) {
      simulated.stages.push_back(
          {.time = PerPass<double>::each([&](ActionKind pass) { return seconds(stage.passes.of(pass)); })});
      simulated.latency.push_back(seconds(stage.transfer));
      simulated.head_latency = seconds(stage.head_transfer);
    }
    simulated.latency.pop_back();
    CAPTURE(s.name, s.microbatches);
    CHECK(static_cast<double>(step_clock(s, costs)(sizes.tokens, sizes.squares)) ==
          simulate(s, simulated).step_time);
  }
}

TEST_CASE("a step of unequal microbatches ends when repetition finds no other time") {
  std::mt19937 random(2);
  const std::vector<Schedule> all = schedules();
  CHECK(all.size() > 36);
  for (const Schedule& s : all) {
    const SizedCosts costs = drawn_costs(s.stages(), random);
    const auto clock = step_clock(s, costs);
    for (int draw = 0; draw < 3; ++draw) {
      const Sizes sizes = drawn_sizes(s.microbatches, /*alike=*/false, random);
      CAPTURE(s.name, s.microbatches, draw);
      CHECK(clock(sizes.tokens, sizes.squares) == by_repetition(s, costs, sizes));
    }
  }
}

TEST_CASE("a step clock wants costs of each stage") {
  std::mt19937 random(3);
  const Schedule s = schedules().front();
  SizedCosts costs = drawn_costs(s.stages(), random);
  costs.pop_back();
  CHECK_THROWS_AS(step_clock(s, costs), Error);
}

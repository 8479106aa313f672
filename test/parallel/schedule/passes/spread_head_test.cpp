#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

namespace pptrain::schedule {
namespace {

using test::contains_text;

// A spread head that costs as much as `layers` layers, with `per_stage` layers per stage. Its F is a third.
Costs with_head(int ranks, double per_stage, double layers) {
  Costs costs{.stages = {passes_of(per_stage, per_stage, per_stage)}, .latency = {0.05}};
  costs.stages[0].time.head_forward = layers / ranks;
  costs.stages[0].time.head_backward = 2 * layers / ranks;
  costs.head_latency = 0.05;
  return costs;
}

// The same head within the last stage's F.
Costs at_the_end(const Schedule& schedule, const Costs& spread, double layers) {
  Costs costs = spread;
  costs.stages.resize(static_cast<size_t>(schedule.stages()), spread.stages[0]);
  costs.stages.back().time.forward += 3 * layers;
  return costs;
}

Schedule make(const std::string& name, int ranks, int microbatches) {
  return make_schedule({.name = name, .ranks = ranks, .microbatches = microbatches, .stages_per_rank = 0});
}

}  // namespace

TEST_CASE("A spread head is sound under every schedule, whatever it costs") {
  for (const std::string& name : training_schedule_names()) {
    for (const int ranks : {2, 3, 4}) {
      for (const int microbatches : {2 * ranks, 2 * ranks + 3}) {
        for (const double layers : {0.01, 1.0, 20.0}) {
          CAPTURE(name, ranks, microbatches, layers);
          Schedule plain;
          try {
            plain = make(name, ranks, microbatches);
          } catch (const UsageError&) {
            continue;  // no such schedule of these numbers
          }
          const Schedule spread = spread_head(plain, with_head(ranks, 2, layers));
          validate(spread);
          for (const Gather gather : {Gather::never, Gather::kept, Gather::streamed})
            validate(lower(spread, {.gather = gather, .reduce = Reduce::microbatch}));
          validate(lower(forward_only(lower(spread))));
          const std::vector<InFlight> before = in_flight(plain), after = in_flight(spread);
          for (int rank = 0; rank < ranks; ++rank)
            CHECK(after[rank].activations <= before[rank].activations + 2 * plain.stages_per_rank);
          CHECK(parse_csv(write_csv(spread), "spread").actions == spread.actions);
        }
      }
    }
  }
}

TEST_CASE("what a spread head receives is what another rank makes for it, once, early and in order") {
  const Schedule spread = lower(spread_head(make("1f1b", 2, 2), with_head(2, 2, 1)));
  const auto refusal = [](const Schedule& s) -> std::string {
    try {
      validate(s);
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  };
  REQUIRE(refusal(spread) == "accepted");
  const auto with_first = [&](int rank, const std::string& action) {
    Schedule s = spread;
    s.actions[rank].insert(s.actions[rank].begin(), parse_action(action));
    return refusal(s);
  };
  // An unknown rank, itself, a stage before the last, terms of gradients for a rank without the last stage.
  for (const char* action : {"0RECV_HEAD(77S0)", "0RECV_HEAD(0S0)", "0RECV_HEAD(0F0)", "0RECV_HEAD(1T0)"})
    CHECK_THAT(with_first(0, action), contains_text("makes nothing that this rank receives"));
  CHECK_THAT(with_first(1, "1RECV_HEAD(1F0)"), contains_text("makes nothing that this rank receives"));
  CHECK_THAT(with_first(0, "0RECV_HEAD(1F1)"), contains_text("of microbatch 0"));
  CHECK_THAT(with_first(0, "0RECV_HEAD(1F7)"), contains_text("there is no microbatch 7"));
  Schedule late = spread;
  late.actions[0].push_back(parse_action("0RECV_HEAD(1S0)"));
  CHECK_THAT(refusal(late), contains_text("of microbatch 2"));
}

TEST_CASE("An evaluation's S follows the last stage's forward, and T follows S") {
  CHECK(write_csv(forward_only(spread_head(make("1f1b", 3, 4), with_head(3, 2, 1)))) ==
        "0F0,0F1,0F2,0F3,0S0,0T0,0S1,0T1,0S2,0T2,0S3,0T3\n"
        "1F0,1F1,1F2,1S0,1F3,1T0,1S1,1T1,1S2,1T2,1S3,1T3\n"
        "2F0,2F1,2S0,2F2,2T0,2S1,2F3,2T1,2S2,2T2,2S3,2T3\n");
}

// With equal stages and a head that costs half of one, an unspread head makes all ranks wait for the last
// one.
TEST_CASE("A spread head shortens the step of every schedule") {
  for (const std::string& name : training_schedule_names()) {
    for (const auto& [ranks, microbatches] : {std::pair(2, 8), std::pair(4, 16), std::pair(8, 32)}) {
      CAPTURE(name, ranks, microbatches);
      const Schedule plain = make(name, ranks, microbatches);
      const double layers = 2;
      const Costs costs = with_head(ranks, 4.0 / plain.stages_per_rank, layers);
      const double step = simulate(lower(spread_head(plain, costs)), costs).step_time;
      const double before = simulate(lower(plain), at_the_end(plain, costs, layers)).step_time;
      CHECK(step < 0.96 * before);
      CHECK(step > microbatches * (3 * 4 + 3 * layers / ranks));  // each rank's computation
    }
  }
}

// Other waits stay small: these schedules come within 8 % of the time in which all ranks only compute.
TEST_CASE("With a spread head ranks of the best schedules compute nearly all the time") {
  for (const char* name : {"zb_h2", "zbv", "interleaved_zb"}) {
    for (const auto& [ranks, microbatches] : {std::pair(2, 8), std::pair(4, 16), std::pair(8, 32)}) {
      const Schedule plain = make(name, ranks, microbatches);
      const Costs costs = with_head(ranks, 4.0 / plain.stages_per_rank, 2);
      CAPTURE(name, ranks, microbatches);
      CHECK(simulate(lower(spread_head(plain, costs)), costs).bubble() < 0.08);
    }
  }
}

TEST_CASE("A head that is not spread soundly is refused") {
  const Costs costs = with_head(2, 2, 1);
  const Schedule sound = spread_head(make("1f1b", 2, 2), costs);
  const auto change = [&](const std::string& from, const std::string& to) {
    std::string text = write_csv(sound);
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return parse_csv(text.replace(at, from.size(), to), "changed");
  };
  CHECK_THROWS_WITH(validate(change("1S0,", "")), Catch::Contains("1S0 is missing"));
  CHECK_THROWS_WITH(validate(change("0T1,", "")), Catch::Contains("0T1 is missing"));
  Schedule swapped = sound;
  auto& list = swapped.actions[0];
  std::iter_swap(std::ranges::find(list, head_forward(0, 0)), std::ranges::find(list, head_backward(0, 0)));
  CHECK_THROWS_WITH(validate(swapped), Catch::Contains("whose logits it needs"));
  Schedule disordered = sound;
  auto& first = disordered.actions[0];
  std::iter_swap(std::ranges::find(first, head_backward(0, 0)),
                 std::ranges::find(first, head_backward(0, 1)));
  CHECK_THROWS_WITH(validate(disordered), Catch::Contains("part of the head of microbatch 1 of stage 0 comes "
                                                          "before that of microbatch 0"));
  Schedule late = sound;  // B of the last stage before its head
  auto& last = late.actions[1];
  const auto of_head = std::ranges::find(last, head_backward(1, 0));
  const auto of_stage = std::ranges::find(last, backward(1, 0));
  std::rotate(of_head, of_stage, of_stage + 1);
  CHECK_THROWS_WITH(validate(late), Catch::Contains("deadlock"));
  Schedule whole = sound;
  whole.spread_head = false;
  CHECK_THROWS_WITH(validate(whole), Catch::Contains("not spread"));
  CHECK_THROWS_AS(spread_head(sound, costs), Error);
}

TEST_CASE("parts and receives of a head where there are none, or no longer, are refused") {
  const auto refused = [](Schedule s, size_t rank, const char* action, bool at_end, const char* why) {
    auto& list = s.actions[rank];
    list.insert(at_end ? list.end() : list.begin(), parse_action(action));
    CHECK_THROWS_WITH(validate(s), contains_text(why));
  };
  refused(lower(make("1f1b", 2, 2)), 1, "1RECV_HEAD(0S0)", false, "head is not spread");
  const Schedule two = spread_head(make("interleaved_1f1b", 2, 2), {});
  refused(two, 0, "2S0", true, "of a rank's first stage, here 0");
  refused(two, 0, "2RECV_HEAD(1S0)", false, "of the rank's first stage, here 0");
  const Schedule spread = lower(spread_head(make("1f1b", 2, 2), with_head(2, 2, 1)));
  refused(spread, 0, "0RECV_HEAD(1F0)", true, "of microbatch 2");
  refused(spread, 1, "1RECV_HEAD(0T0)", true, "of microbatch 2");
  refused(lower(forward_only(spread)), 1, "1RECV_HEAD(0T0)", false, "makes nothing that this rank receives");
}

TEST_CASE("a spread head's list without its parts is sound, in the same order") {
  const Schedule spread = spread_head(make("1f1b", 4, 8), with_head(4, 1, 1));
  const Schedule lists = lower(spread, {.blocking_sends = true});
  REQUIRE(lists.has(ActionKind::recv_head));
  for (const Schedule& given : {spread, lists}) {
    const Schedule whole = whole_head(given);
    CHECK_FALSE(whole.spread_head);
    CHECK_NOTHROW(validate(whole));
    CHECK(compute_only(whole).actions == whole_head(spread).actions);
  }
}

TEST_CASE("a list that brings a head's receives alone gets its sends and receives") {
  const Schedule given = parse_csv("0F0,0RECV_HEAD(1F0),0S0,0T0,0B0\n1F0,1S0,1T0,1B0\n");
  for (const bool blocking : {false, true}) {
    const Schedule s = lower(given, {.blocking_sends = blocking});
    CHECK(s.has(ActionKind::send_f));
    CHECK(s.has(ActionKind::recv_b));
    CHECK_NOTHROW(simulate(s));
  }
}

}  // namespace pptrain::schedule

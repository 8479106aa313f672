#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "test/support/catch.h"

namespace pptrain::schedule {
namespace {

Schedule make(const std::string& name, int ranks, int microbatches, int slices) {
  return make_schedule({.name = name,
                        .ranks = ranks,
                        .microbatches = microbatches,
                        .stages_per_rank = 0,
                        .sequence_slices = slices});
}

}  // namespace

TEST_CASE("Sequence slices are sound under every schedule") {
  int made = 0;
  for (const std::string& name : training_schedule_names()) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const int microbatches : {1, std::max(1, ranks / 2), ranks, 2 * ranks + 1}) {
        for (const int slices : {2, 3, 4, 16}) {
          CAPTURE(name, ranks, microbatches, slices);
          Schedule schedule;
          try {
            schedule = make(name, ranks, microbatches, slices);
          } catch (const UsageError&) {
            continue;  // no such schedule of these numbers
          }
          ++made;
          CHECK(schedule.microbatches == microbatches * slices);
          validate(schedule);
          if (schedule.cells() > 256) continue;
          for (const Gather gather : {Gather::never, Gather::kept, Gather::streamed})
            validate(lower(schedule, {.gather = gather, .reduce = Reduce::microbatch}));
          const Schedule evaluation = forward_only(lower(schedule));
          validate(lower(evaluation));
          CHECK(evaluation.microbatches == microbatches);
        }
      }
    }
  }
  CHECK(made > 500);
}

TEST_CASE("1f1b of sequence slices has the bubble and the activations of Seq1F1B") {
  for (const int ranks : {2, 4, 8}) {
    for (const int microbatches : {1, ranks / 2, ranks, 3 * ranks}) {
      for (const int slices : {2, 4, 8}) {
        if (microbatches * slices < ranks) continue;  // 1f1b wants as many
        CAPTURE(ranks, microbatches, slices);
        const Schedule schedule = make("1f1b", ranks, microbatches, slices);
        const int all = microbatches * slices;
        CHECK(simulate(schedule, {.stages = {}, .latency = {0}}).step_time == Approx(3 * (all + ranks - 1)));
        const std::vector<InFlight> held = in_flight(schedule);
        for (int rank = 0; rank < ranks; ++rank)
          CHECK(held[static_cast<size_t>(rank)].activations == std::min(all, ranks - rank + slices - 1));
      }
    }
  }
}

TEST_CASE("Of a list the last slice goes back first, and another order is refused") {
  Schedule schedule = make("1f1b", 1, 2, 3);
  std::vector<int> order;
  for (const Action& action : schedule.actions[0]) {
    if (action.kind == ActionKind::backward) order.push_back(action.microbatch);
  }
  CHECK(order == std::vector<int>{2, 1, 0, 5, 4, 3});
  auto& list = schedule.actions[0];
  const auto second = std::ranges::find(list, backward(0, 1)),
             third = std::ranges::find(list, backward(0, 0));
  std::iter_swap(second, third);
  CHECK_THROWS_WITH(validate(schedule), pptrain::test::contains_text("the last slice first"));
  CHECK_THROWS_WITH(make("1f1b", 1, 2, 0), pptrain::test::contains_text("at least 1 sequence slice"));
  schedule.sequence_slices = 4;
  CHECK_THROWS_WITH(validate(schedule), pptrain::test::contains_text("lists in 4 sequence slices"));
}

TEST_CASE("A schedule that deadlocks has no sequence slices") {
  Schedule schedule = make("interleaved_1f1b", 1, 2, 1);
  auto& list = schedule.actions[0];
  std::iter_swap(std::ranges::find(list, forward(0, 0)), std::ranges::find(list, forward(1, 0)));
  CHECK_THROWS_WITH(in_sequence_slices(schedule, 2),
                    pptrain::test::contains_text("its ranks wait for each other"));
}

}  // namespace pptrain::schedule

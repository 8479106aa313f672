// Steps of ranks that share cores, against sums made by hand.
#include "app/forecast/core_sharing.h"

#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::CoreSharing;
using schedule::Simulation;

namespace {

schedule::Schedule gpipe(int ranks, int microbatches) {
  return schedule::make_schedule({.name = "gpipe", .ranks = ranks, .microbatches = microbatches});
}

Simulation shared(const schedule::Schedule& schedule, const CoreSharing& sharing, int stride = 1) {
  mesh::MeshShape mesh{.pp = schedule.ranks, .dp_shard = stride};
  return app::on_shared_cores(schedule, schedule::simulate(schedule), mesh, 1, sharing);
}

}  // namespace

TEST_CASE("with a core for each thread nothing changes") {
  const schedule::Schedule schedule = gpipe(4, 4);
  const Simulation alone = schedule::simulate(schedule);
  for (const CoreSharing& sharing :
       {CoreSharing{}, CoreSharing{.cores = 4}, CoreSharing{.cores = 2, .ranks_per_set = 2}}) {
    const Simulation same = shared(schedule, sharing);
    CHECK(same.step_time == alone.step_time);
    CHECK(same.ranks[1].busy == alone.ranks[1].busy);
    CHECK(same.spans[3].back().end == alone.spans[3].back().end);
  }
}

// F takes 1 and B 2. Four microbatches pass through two ranks on one core: F runs alone in the first and in
// the fifth moment, and both ranks compute in between. B likewise.
TEST_CASE("two ranks on one core take turns where both compute, and go on alone where one waits") {
  const schedule::Schedule schedule = gpipe(2, 4);
  REQUIRE(schedule::simulate(schedule).step_time == 5 + 10);
  const Simulation both = shared(schedule, {.cores = 1});
  CHECK(both.step_time == Approx(1 + 3 * 2 + 1 + 2 + 6 * 2 + 2));
  // One core does all the work and never waits.
  CHECK(both.step_time == Approx(2 * 4 * (1 + 2)));
  for (const schedule::RankTime& rank : both.ranks) CHECK(rank.busy + rank.idle() == Approx(both.step_time));
}

TEST_CASE("ranks of a stage count as many times as they are in the set") {
  const schedule::Schedule schedule = gpipe(1, 3);
  const double alone = schedule::simulate(schedule).step_time;
  CHECK(shared(schedule, {.cores = 2}, 4).step_time == Approx(2 * alone));
  CHECK(shared(schedule, {.cores = 2, .ranks_per_set = 2}, 4).step_time == alone);
  CHECK(shared(schedule, {.cores = 1.5, .ranks_per_set = 2}, 4).step_time == Approx(4 / 3. * alone));
}

// As measured on two cores: a step on four ranks takes more than half the time of a step on two.
TEST_CASE("a plan of more CPU ranks than cores is no faster than the cores are") {
  const auto step_of = [](int pp, double cores) {
    const app::Plan plan = small_plan(
        small_job_text(), "run",
        {fmt::format("distributed.pp={}", pp), "train.grad_accum_steps=16", "model.num_hidden_layers=8"});
    const app::CostSource source =
        app::on_cores(app::make_cost_source(plan, "cpu"), plan.mesh.world_size(), 1, {.cores = cores});
    return app::predict(plan, source);
  };
  const double one = step_of(1, 2).step_time;
  CHECK(step_of(4, 4).step_time == step_of(4, 0).step_time);
  CHECK(step_of(4, 2).step_time > one / 2);
  CHECK(step_of(4, 2).step_time > 1.3 * step_of(4, 4).step_time);
  const app::Prediction p = step_of(4, 2);
  for (size_t rank = 0; rank < p.barrier.size(); ++rank)
    CHECK(p.pipeline.ranks[rank].busy + p.pipeline.ranks[rank].idle() + p.optimizer_time[rank] +
              p.barrier[rank] ==
          Approx(p.step_time));
}

// When a run reports that it is slow, which rank it names, and what it compares with.
#include "app/run/pace.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "app/data/datasets.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/run/step_profile.h"
#include "core/data/data_loader.h"
#include "parallel/pipeline/executor.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::Pace;
using app::StepPace;

namespace {

const Overrides two_ranks = {"distributed.pp=2", "train.grad_accum_steps=4"};

app::Plan plan_of(const Overrides& overrides, const fs::path& run_dir = "run") {
  return small_plan(small_job_text(), run_dir, with(two_ranks, overrides));
}

// Of a rank: forward, backward, weight gradients, data and optimizer, transfers.
using Times = std::array<double, 5>;

// No pass waits: a rank's own time is its work.
app::RankShares shares_of(const Times& t) {
  return {t[0], t[1], t[2], t[3], t[4], t[0] + t[1] + t[2] + t[3]};
}

// Of ranks 0 and 1.
StepPace step_of(double seconds, const Times& first, const Times& second) {
  return {.seconds = seconds, .ranks = {shares_of(first), shares_of(second)}};
}
const StepPace steady = step_of(1, {0.2, 0.4, 0, 0.1, 0.01}, {0.2, 0.4, 0, 0.1, 0.01});

// Takes `count` equal steps after `step`; returns the logged lines.
std::vector<std::string> take(Pace& pace, int64_t& step, int count, const StepPace& measured) {
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) {
    if (std::string line = pace.take(++step, measured); !line.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

TEST_CASE("a start's first steps judge a modelled plan, and are what later steps are compared with") {
  Pace pace(plan_of({}));
  int64_t step = 0;
  CHECK(take(pace, step, 3, step_of(9, {3, 3, 0, 1, 1}, {3, 3, 0, 1, 1})).empty());  // warming up
  CHECK(take(pace, step, 9, steady).empty());
  const auto first = take(pace, step, 1, steady);
  REQUIRE(first.size() == 1);
  CHECK_THAT(first.front(), contains_text("steps 4 to 13: 1.00 s a step, ") &&
                                contains_text(" times slower than planned; the plan was ") &&
                                contains_text(", modelled for cpu; rank "));
  CHECK_THAT(app::describe_pace(pace.record()), contains_text("as steps 4 to 13 (1.00 s a step; the plan"));

  // A spike or a few of them are not reported.
  for (int block = 0; block < 3; ++block) {
    CHECK(take(pace, step, 6, steady).empty());
    CHECK(take(pace, step, 4, step_of(5, {1, 3, 0, 1, 0}, {1, 3, 0, 1, 0})).empty());
  }
  // Nor is a difference within the noise.
  CHECK(take(pace, step, 20, step_of(1.08, {0.2, 0.48, 0, 0.1, 0}, {0.2, 0.4, 0, 0.1, 0})).empty());

  // Rank 1 is slow, and rank 0 waits for it: one line, once.
  const StepPace slow = step_of(1.5, {0.2, 0.42, 0, 0.1, 0.3}, {0.3, 0.8, 0, 0.1, 0.01});
  const auto begin = take(pace, step, 40, slow);
  REQUIRE(begin.size() == 1);
  CHECK(begin.front() == "steps 64 to 73: 50 % slower than steps 4 to 13: rank 1's backward +100 %");
  CHECK(app::is_slow(pace.record()));
  CHECK(app::describe_pace(pace.record()) ==
        "since step 64 50 % slower than steps 4 to 13: rank 1's backward +100 %");

  // The slow time must end clearly.
  CHECK(take(pace, step, 10, step_of(1.07, {0.2, 0.4, 0, 0.1, 0}, {0.2, 0.47, 0, 0.1, 0})).empty());
  const auto end = take(pace, step, 30, steady);
  REQUIRE(end.size() == 1);
  CHECK(end.front() == "steps 114 to 123: no longer slower than steps 4 to 13");
  CHECK(pace.record().slow.front().last == 113);
  CHECK_FALSE(app::is_slow(pace.record()));
}

TEST_CASE("a run that is slow now and then says so ever more rarely") {
  Pace pace(plan_of({}));
  int64_t step = 0;
  take(pace, step, 13, steady);
  const StepPace slow = step_of(1.5, {0.2, 0.42, 0, 0.1, 0.3}, {0.3, 0.8, 0, 0.1, 0.01});
  size_t lines = 0;
  CHECK(take(pace, step, 10, slow).size() == 1);  // the first time at once
  for (int i = 0; i < 50; ++i) {
    lines += take(pace, step, 10, steady).size();
    lines += take(pace, step, 10, slow).size();
  }
  CHECK(lines >= 2);
  CHECK(lines <= 5);  // a hundred blocks, each different from the one before
  // After a long calm time a change is reported at once again.
  take(pace, step, 10 * 2000, steady);
  CHECK_FALSE(app::is_slow(pace.record()));
  CHECK(take(pace, step, 10, slow).size() == 1);
  CHECK(take(pace, step, 10, steady).size() == 1);
}

TEST_CASE("a slow step is explained by work, else by transfers, else by exchanges") {
  const auto why = [&](const StepPace& slow, const Overrides& more = {}) {
    Pace pace(plan_of(more));
    int64_t step = 0;
    take(pace, step, 13, slow.ranks.empty() ? StepPace{.seconds = 1} : steady);
    take(pace, step, 10, slow);
    REQUIRE(pace.record().slow.size() == 1);
    return pace.record().slow.front().why;
  };
  CHECK(why(step_of(1.6, {0.2, 0.4, 0, 0.1, 0.01}, {0.4, 0.8, 0, 0.1, 0.01})) ==
        "rank 1's forward +100 %, backward +100 %");
  CHECK(why(step_of(1.5, {0.2, 0.4, 0, 0.6, 0.01}, {0.2, 0.4, 0, 0.1, 0.01})) ==
        "rank 0's data and optimizer +500 %");
  CHECK(why(step_of(1.5, {0.2, 0.4, 0, 0.1, 0.41}, {0.2, 0.4, 0, 0.1, 0.01})) ==
        "rank 0 waits 400 ms longer for transfers");
  CHECK(why({.seconds = 1.5, .ranks = steady.ranks}) == "exchanges at the end of the step");
  CHECK(why({.seconds = 2}) == "passes are timed in traced steps alone (profile.trace)");
}

TEST_CASE("a slow rank is named wherever it is, though passes of others wait for it") {
  const Overrides four_ranks = {"distributed.tp=2"};
  const auto step = [](double seconds, const std::array<double, 4>& backward, double own_of_last) {
    StepPace pace{.seconds = seconds, .ranks = {}};
    for (const double b : backward) pace.ranks.push_back(shares_of({0.2, b, 0, 0.1, 0.01}));
    pace.ranks[3].back() = own_of_last;
    return pace;
  };
  const auto why = [&](const StepPace& slow) {
    Pace pace(plan_of(four_ranks));
    int64_t count = 0;
    take(pace, count, 13, step(1, {0.4, 0.4, 0.4, 0.4}, 0.6));  // rank 3 waits 0.1 s in passes
    take(pace, count, 10, slow);
    REQUIRE(pace.record().slow.size() == 1);
    return pace.record().slow.front().why;
  };
  // Ranks 2 and 3 share a stage.
  StepPace third = step(1.4, {0.4, 0.4, 0.8, 0.8}, 0.6);
  CHECK(why(third) == "rank 2's backward +100 %");
  std::swap(third.ranks[2].back(), third.ranks[3].back());
  third.ranks[2].back() = 0.7;
  CHECK(why(third) == "rank 3's backward +100 %");
  CHECK(why(step(1.4, {0.4, 0.4, 0.4, 0.4}, 0.6)) == "exchanges between ranks of a stage");
  CHECK(why(step(1.4, {0.4, 0.4, 0.4, 0.4}, 1.0)) == "rank 3's work between passes");
}

TEST_CASE("a rank's own time is its step without waits, on a GPU its passes and other work") {
  const auto schedule = schedule::make_schedule({.name = "gpipe", .ranks = 1, .microbatches = 1});
  schedule::RankStep step{.step = {0, 10}, .actions = {{0, 2}, {3, 6}}, .work = {{6, 7}}, .waited = 1};
  const auto own = [&] {
    return app::rank_shares(schedule, {&step, 1}, schedule::split_step(schedule, {&step, 1})).at(0).back();
  };
  CHECK(own() == 9);
  step.waited.reset();
  CHECK(own() == 6);
}

TEST_CASE("rank 0 knows the own time of every rank, although others wait in their passes") {
  constexpr double pause = 0.3;  // s, of rank 3 before its passes
  const Overrides layout = {"distributed.dp_shard=2", "distributed.reshard_after_forward=true"};
  const TemporaryFolder folder;
  const app::Plan plan = plan_of(layout, folder.path());
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context);
    model.initialise();
    const auto sources = app::open_data(plan.job, plan.model.vocab, {}, app::Wanted::training);
    const data::DataLoader loader(app::training_streams(sources), app::loader_options(context), true, 0);
    pipeline::Executor executor(model.pipeline_stages(), context.mesh.along(mesh::Axis::pp), plan.schedule);
    app::StepProfile profile(context, executor, plan.schedule);
    for (int step = 1; step <= 2; ++step) {
      profile.begin_step(step);
      model.zero_grad();
      profile.timed(app::Phase::data, [&] {
        if (context.mesh.rank() == 3) std::this_thread::sleep_for(std::chrono::duration<double>(pause));
      });
      executor.run(loader.step(step).microbatches);
      profile.timed(app::Phase::loss, [&] { model.global_loss(); });
      profile.end_step();
      profile.settle();
    }
    if (!context.root()) return 0;
    constexpr size_t other_work = 3, own = 5;
    const std::vector<app::RankShares>& shares = profile.shares();
    REQUIRE(shares.size() == 4);
    CHECK(shares[3][other_work] >= pause);
    CHECK(shares[3][own] >= pause);
    // The other rank of its stage waits for its weights in the first forward pass.
    CHECK(shares[2][0] >= pause / 2);
    for (const size_t rank : {0, 1, 2}) {
      CAPTURE(rank);
      CHECK(shares[rank][other_work] < pause / 2);
      CHECK(shares[rank][own] < pause / 2);
    }
    return 0;
  });
}

TEST_CASE("steps are compared with the plan where a run measured its costs") {
  const TemporaryFolder folder;
  run_small_job(small_job_text(), folder.path() / "traced",
                with(two_ranks, {"profile.trace=true", "train.steps=6"}));
  const Overrides costs = {"distributed.pp_costs=" + (folder.path() / "traced/trace.json").string()};
  Pace pace(plan_of(costs));
  const double planned = pace.record().planned;
  CHECK(planned > 0);
  int64_t step = 0;
  CHECK(take(pace, step, 3, steady).empty());
  const auto lines = take(pace, step, 10, step_of(planned + 1, {0, 0, 0, 0, 0}, {0, 1 + planned, 0, 0, 0}));
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines.front(), contains_text(" slower than planned: rank 1's backward +"));
  CHECK(pace.record().compared_with() == "planned");
}

TEST_CASE("pace.json is read as it was written, and nothing else is") {
  const TemporaryFolder folder;
  CHECK_FALSE(app::read_pace(folder.path()));
  app::write_pace(folder.path(), {.planned = 0.5,
                                  .costs = "modelled for cpu",
                                  .first = 4,
                                  .last = 13,
                                  .reference = 0.75,
                                  .slow = {{.first = 20, .last = 29, .factor = 1.5, .why = "a"},
                                           {.first = 40, .last = {}, .factor = 2, .why = "b"}}});
  const auto read = app::read_pace(folder.path());
  REQUIRE(read);
  CHECK(app::describe_pace(*read) == "since step 40 100 % slower than steps 4 to 13: b");
  CHECK(app::describe(read->slow.front(), *read) == "steps 20 to 29 were 50 % slower than steps 4 to 13: a");
  CHECK((read->planned == 0.5 && read->reference == 0.75 && read->costs == "modelled for cpu"));
  write_file(folder.path() / "pace.json", "{}");
  CHECK_FALSE(app::read_pace(folder.path()));
}

// Four ranks on fewer cores: the plan counts that they share them.
TEST_CASE("a modelled plan counts the cores that the ranks share, and says so") {
  const app::Plan plan = plan_of({"distributed.pp=4", "model.num_hidden_layers=4"});
  const Pace alone(plan), enough(plan, {.cores = 4}), shared(plan, {.cores = 1});
  CHECK(enough.record().planned == alone.record().planned);
  CHECK(enough.record().costs == alone.record().costs);
  CHECK(shared.record().planned > 1.5 * alone.record().planned);
  CHECK_THAT(shared.record().costs, contains_text("4 threads share 1 core"));
}

// When a run reports that it is slow, which rank it names, and what it compares with.
#include "app/run/pace.h"
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

// The times of two ranks: forward, backward, weight gradients, data and optimizer, transfers.
StepPace step_of(double seconds, const app::RankShares& first, const app::RankShares& second) {
  return {.seconds = seconds, .ranks = {first, second}};
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
  CHECK(why(step_of(1.5, steady.ranks[0], steady.ranks[1])) == "exchanges at the end of the step");
  // Then rank 0's pipeline has ranks 0 and 2.
  CHECK(why(step_of(1.5, steady.ranks[0], steady.ranks[1]), {"distributed.dp_replicate=2"}) ==
        "ranks beyond rank 0's pipeline, or exchanges with them");
  CHECK(why(step_of(1.4, {0.2, 0.4, 0, 0.1, 0.01}, {0.2, 0.8, 0, 0.1, 0.01}),
            {"distributed.dp_replicate=2"}) == "rank 2's backward +100 %");
  CHECK(why({.seconds = 2}) == "passes are timed in traced steps alone (profile.trace)");
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

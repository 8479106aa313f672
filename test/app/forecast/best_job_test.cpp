// The job file that a search writes.
#include "app/forecast/best_job.h"

#include <string>
#include <vector>

#include "app/forecast/costs.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/config/loader.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::Candidate;
using app::Plan;

namespace {

const app::LoadOptions no_files{.needs_files = false};

struct Searched {
  fs::path config;
  std::vector<std::string> set;  // --set of the search
  app::PlanBase base;
  std::vector<Candidate> found;
};

Searched search_in(const fs::path& folder) {
  Searched searched{.config = folder / "jobs/job.toml", .set = {}, .base = {}, .found = {}};
  write_file(searched.config, small_job_text());
  searched.set = {"train.grad_accum_steps=4", "distributed.pp=2", "run.dir=" + (folder / "run").string()};
  searched.base = app::load_plan_base(searched.config, searched.set, no_files);
  searched.found = app::search(searched.base, app::make_cost_source(searched.base, "cpu"), {});
  return searched;
}

}  // namespace

TEST_CASE("a search's job includes the one it began with, and reads back to the same plan") {
  const TemporaryFolder folder;
  const Searched searched = search_in(folder.path());
  REQUIRE(searched.found.size() > 3);
  for (const Candidate& candidate : {searched.found[0], searched.found[3]}) {
    const fs::path path = folder.path() / "found/best.toml";
    app::BestJob best{.config = searched.config,
                      .path = path,
                      .command = "pptrain plan --search",
                      .costs = "modelled for cpu",
                      .budget = 2e9,
                      .set = searched.set};
    for (const std::string& key : candidate.layout.overrides(searched.base.job, true))
      best.set.push_back(key);
    const Plan plan = app::load_plan(searched.config, best.set, no_files);
    const std::string text = app::write_best_job(best, candidate, plan);
    CAPTURE(text);
    write_file(path, text);
    const Plan back = app::load_plan(path, {}, no_files);
    CHECK(config::to_toml(back.job) == config::to_toml(plan.job));
    CHECK(app::fingerprint(back) == app::fingerprint(plan));
    CHECK_THAT(text, contains_text("# Written by: pptrain plan --search\n") &&
                         contains_text("costs modelled for cpu") &&
                         contains_text("2.00 GB a rank\n# Predicted: step ") &&
                         contains_text("\ninclude = \"../jobs/job.toml\"\n"));
    CHECK(std::ranges::count(text, '\n') < 30);
  }
}

TEST_CASE("a search's job does not replace the one that it includes") {
  const TemporaryFolder folder;
  const Searched searched = search_in(folder.path());
  const app::BestJob best{
      .config = searched.config, .path = searched.config, .command = "", .costs = "", .set = {}};
  const Plan plan = app::load_plan(searched.config, searched.set, no_files);
  CHECK_THROWS_AS(app::write_best_job(best, searched.found.front(), plan), UsageError);
}

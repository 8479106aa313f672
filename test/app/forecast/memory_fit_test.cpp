// Whether plans fit, and the advice that makes them fit.
#include "app/forecast/memory_fit.h"

#include <string>
#include <vector>

#include "app/forecast/costs.h"
#include "app/forecast/plan_report.h"
#include "app/forecast/sureness.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::MemoryFit;
using app::RankBytes;
using app::Remedy;

namespace {

// A job with FSDP over eight ranks; gradients are most of their memory.
const Overrides fsdp = {"model.hidden_size=1024",      "model.intermediate_size=2816",
                        "model.num_hidden_layers=8",   "model.num_attention_heads=8",
                        "model.num_key_value_heads=8", "model.head_dim=128",
                        "model.vocab_size=32000",      "train.seq_len=128",
                        "train.micro_batch_size=2",    "train.grad_accum_steps=2",
                        "distributed.dp_shard=8"};

app::Plan plan_of(const Overrides& more = {}) {
  return small_plan(small_job_text(), "run", with(fsdp, more));
}

app::CostSource h100(const app::Plan& plan) {
  return app::make_cost_source(plan, "h100");
}

double peak_of(const Overrides& more) {
  const app::Plan plan = plan_of(more);
  return static_cast<double>(app::predict(plan, h100(plan)).peak_bytes());
}

std::string report(const app::Plan& plan, double room) {
  const app::CostSource source = h100(plan);
  const app::CostModel costs(plan, source);
  const app::Prediction p = app::predict(plan, costs);
  return app::render_plan(plan, p, costs, source, {.width = 200},
                          app::context_of(plan, p, source, room, "one h100"));
}

}  // namespace

TEST_CASE("the fullest rank decides on GPUs, and all ranks of a host together on CPUs") {
  std::vector<RankBytes> ranks(2);
  ranks[0].weights = 30;
  ranks[1].activations = 40;
  const MemoryFit on_gpu = app::fit_on_gpu(ranks, 39, "one h100");
  CHECK_FALSE(on_gpu.fits());
  CHECK(on_gpu.rank == 1);
  CHECK(app::fit_on_gpu(ranks, 40, "one h100").fits());
  CHECK(app::fit_on_gpu(ranks, 0, "").fits());  // no bound is known
  const app::Plan plan = small_plan(
      small_job_text(), "run", {"distributed.pp=2", "distributed.dp_shard=2", "train.grad_accum_steps=4"});
  CHECK(app::fit_on_host(plan, ranks, 5, 1000).needed == 2 * 30 + 2 * 40 + 5);
  app::Plan spread = plan;
  spread.job.distributed.ranks_per_host = 2;  // a pipeline rank on each host
  CHECK(app::fit_on_host(spread, ranks, 5, 1000).needed == 2 * 40 + 5);
  CHECK(app::fit_on_host(spread, ranks, 5, 84).fits() == false);
}

TEST_CASE("copies in memory count, three times a checkpoint") {
  const Overrides copies = {"checkpoint.memory_seconds=1", "optimizer.ema_decay=0.9"};
  const app::Plan plan = plan_of(copies), without = plan_of({"optimizer.ema_decay=0.9"});
  CHECK(app::memory_copy_bytes(without) == 0);
  CHECK(app::memory_copy_bytes(plan) == 3 * app::checkpoint_bytes(plan));
  const std::vector<RankBytes> ranks(1);
  const double more =
      app::fit_on_host(plan, ranks, 0, 1).needed - app::fit_on_host(without, ranks, 0, 1).needed;
  CHECK(more == static_cast<double>(app::memory_copy_bytes(plan)));
  CHECK_THAT(report(plan, 0), contains_text("copies in memory"));
  CHECK(report(without, 0).find("copies in memory") == std::string::npos);
}

TEST_CASE("what is said to make a plan fit does so, and takes what it is said to") {
  const app::Plan plan = plan_of();
  const double whole = peak_of({}), summed = peak_of({"distributed.reduce_gradients=microbatch"});
  REQUIRE(summed < 0.8 * whole);
  const std::vector<Remedy> found = app::remedies(plan, h100(plan), 0.85 * whole);
  REQUIRE_FALSE(found.empty());
  CHECK(found.size() <= 3);
  bool sums = false;
  for (const Remedy& remedy : found) {
    const Overrides& set = remedy.set;
    CAPTURE(set);
    CHECK(remedy.bytes <= 0.85 * whole);
    CHECK(peak_of(set) == remedy.bytes);
    sums |= set == Overrides{"distributed.reduce_gradients=microbatch"};
  }
  CHECK(sums);
}

TEST_CASE("where no single change is enough the fewest together are said, or that none are") {
  const app::Plan plan = plan_of();
  const double summed = peak_of({"distributed.reduce_gradients=microbatch"});
  const std::vector<Remedy> together = app::remedies(plan, h100(plan), 0.8 * summed);
  REQUIRE(together.size() == 1);
  CHECK(together.front().set.size() > 1);
  CHECK(together.front().bytes <= 0.8 * summed);
  CHECK(app::remedies(plan, h100(plan), 1e6).empty());
}

TEST_CASE("a report says first whether the plan fits, and how sure it is") {
  const app::Plan plan = plan_of();
  const double whole = peak_of({});
  const std::string fits = report(plan, 2 * whole), small = report(plan, 0.85 * whole);
  CHECK_THAT(fits, contains_text("\nmemory: fits; rank 0 needs "));
  CHECK_THAT(report(plan, 1.01 * whole), contains_text("\nmemory: fits barely; rank 0 needs "));
  CHECK_THAT(small, contains_text("\nmemory: DOES NOT FIT: rank 0 needs ") &&
                        contains_text("--set distributed.reduce_gradients=microbatch: "));
  for (const char* line : {"step ", "memory: ", "how sure: ", "with links of half the bandwidth: step "}) {
    CAPTURE(line);
    CHECK(fits.find(std::string("\n") + line) < fits.find("\nrank 0 "));
  }
  const app::CostSource source = h100(plan);
  const app::Prediction p = app::predict(plan, source);
  const auto json = app::plan_json(plan, p, {plan, source}, source,
                                   app::context_of(plan, p, source, 0.85 * whole, "one h100"));
  CHECK(json.at("memory").at("fits") == false);
  CHECK(json.at("memory").at("remedies").size() > 0);
  // Slower links never make a step shorter.
  const auto& links = json.at("sureness").at("step_time_with_links");
  CHECK(links.at("half").get<double>() >= p.step_time);
  CHECK(links.at("double").get<double>() <= p.step_time);
}

TEST_CASE("forecasts of several GPUs say that no links were measured, and how far off such forecasts were") {
  const app::Plan plan = plan_of();
  const app::Sureness several = app::sureness_of(h100(plan), 8);
  CHECK_THAT(several.text, contains_text("links between GPUs never measured"));
  CHECK(several.least == Approx(1.173).margin(0.001));  // 3,487 planned, 2,973 published
  CHECK(several.most == Approx(1.555).margin(0.001));   // 10,366 planned, 6,667 published
  CHECK_THAT(several.describe_range(2), contains_text("2.35 s to 3.11 s"));
  CHECK_FALSE(app::sureness_of(h100(plan), 1).has_range());
  CHECK_FALSE(app::sureness_of(app::make_cost_source(plan, "cpu"), 8).has_range());
}

TEST_CASE("two plans stand side by side, and a difference that forecasts are not sure of is said") {
  const auto named = [](const std::string& name, const Overrides& more) {
    app::Plan plan = plan_of(more);
    app::CostSource source = h100(plan);
    app::Prediction p = app::predict(plan, source);
    return app::NamedPlan{name, std::move(plan), std::move(p), std::move(source)};
  };
  const app::NamedPlan one = named("one.toml", {});
  const std::string text =
      app::render_beside(one, named("other.toml", {"distributed.reshard_after_forward=true"}));
  CHECK_THAT(text, contains_text("one.toml") && contains_text("other.toml") && contains_text("fullest rank"));
  CHECK_THAT(text, contains_text("the rates differ by less than forecasts are sure of (33 %): measure both"));
  CHECK_THAT(app::render_beside(one, named("long.toml", {"train.seq_len=1024", "model.num_hidden_layers=1"})),
             contains_text("the rates differ by more than forecasts are sure of (33 %)"));
}

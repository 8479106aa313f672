// Predictions on meshes of every axis, and the search over meshes.
#include "app/forecast/search.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "app/forecast/layout_model.h"
#include "app/forecast/legal_meshes.h"
#include "app/forecast/mesh_links.h"
#include "app/forecast/prediction.h"
#include "app/forecast/search_report.h"
#include "core/base/error.h"
#include "core/config/options.h"
#include "parallel/schedule/passes/passes.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::CostSource;
using mesh::Group;
using mesh::MeshShape;

namespace {

// Eight samples a step.
app::PlanBase small_base(const Overrides& more = {}) {
  return small_plan(small_job_text(), "run",
                    with(Overrides{"train.micro_batch_size=1", "train.grad_accum_steps=8"}, more));
}

app::PlanBase llama_70b(int64_t samples) {
  return small_plan(
      small_job_text(), "run",
      {"run.device=\"cuda\"", "model.hidden_size=8192", "model.intermediate_size=28672",
       "model.num_hidden_layers=80", "model.num_attention_heads=64", "model.num_key_value_heads=8",
       "model.head_dim=128", "model.vocab_size=128256", "train.seq_len=4096", "train.dtype=bf16",
       "train.micro_batch_size=1", fmt::format("train.grad_accum_steps={}", samples)});
}

// Links that are slow or fast compared with the small job's computation.
CostSource source_with(double within, double between, int ranks_per_host) {
  CostSource source{.device = app::find_device("cpu"), .description = "by hand"};
  source.device.within_host = {.bandwidth = within, .latency = 1e-7};
  source.device.between_hosts = {.bandwidth = between, .latency = 1e-7};
  source.device.ranks_per_host = ranks_per_host;
  return source;
}

app::Plan plan_on(const app::PlanBase& base, const app::Layout& layout) {
  const app::PlanBase chosen = on_layout(base, layout);
  return make_plan(base, layout, schedule::lower(app::given_schedule(chosen.job), lower_options(chosen)));
}

app::Layout even_layout(const app::PlanBase& base, const MeshShape& mesh,
                        const std::string& schedule = "1f1b", bool reshard = false,
                        bool every_microbatch = false) {
  const int64_t samples = app::samples_of_step(base) / mesh.size(Group::batch);
  return {.mesh = mesh,
          .micro_batch_size = 1,
          .grad_accum_steps = samples,
          .recompute = config::Recompute::none,
          .reshard = reshard,
          .every_microbatch = every_microbatch,
          .schedule = schedule,
          .stages_per_rank = 1,
          .layers = pipeline::compute_layer_assignment(static_cast<int>(base.model.layers), mesh.pp)};
}

bool mentions(const std::vector<app::Loser>& losers, const std::string& what, const std::string& why) {
  return std::ranges::any_of(losers, [&](const app::Loser& loser) {
    return loser.what == what && loser.why.find(why) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("legal meshes use all ranks, and cut what they cut into whole parts") {
  const app::PlanBase base = small_base();  // 4 layers, 4 heads, 2 of them for keys and values, 16 tokens
  const auto meshes = app::legal_meshes(base, 8, 8);
  std::set<std::string> seen;
  for (const MeshShape& mesh : meshes) {
    CHECK(mesh.world_size() == 8);
    CHECK(mesh.pp <= 4);
    CHECK(mesh.tp <= 4);
    CHECK(8 % mesh.size(Group::batch) == 0);
    CHECK_NOTHROW(mesh::check_shape(mesh));
    CHECK(seen.insert(mesh.describe()).second);
  }
  // pp x replicas x shards x cp x tp of 2^3: 35 ways, less those with 8 on pp or tp.
  CHECK(meshes.size() == 33);
  // Three samples a step: no two data ranks.
  const auto of_three = app::legal_meshes(base, 8, 3);
  REQUIRE_FALSE(of_three.empty());
  for (const MeshShape& mesh : of_three) CHECK(mesh.size(Group::batch) == 1);
  CHECK(app::legal_meshes(base, 7, 8).empty());
}

TEST_CASE(
    "meshes are legal where tensor-parallel ranks cut no width of experts, and of any number of ranks") {
  const Overrides mixtral = {"model.arch=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2",
                             "model.intermediate_size=50", "train.seq_len=15"};
  const auto meshes = app::legal_meshes(small_base(mixtral), 4, 1);
  CHECK(std::ranges::any_of(meshes, [](const MeshShape& mesh) { return mesh.tp == 4; }));
  const Overrides dense = {"model.intermediate_size=50", "train.seq_len=15"};
  const auto of_dense = app::legal_meshes(small_base(dense), 4, 1);
  REQUIRE_FALSE(of_dense.empty());
  for (const MeshShape& mesh : of_dense) CHECK(mesh.tp <= 2);
  CHECK(app::legal_meshes(small_base(), 2147483647, 8).empty());  // a prime
}

TEST_CASE("every legal mesh of up to 8 ranks is predicted, and nothing is lost on the way") {
  const app::PlanBase base = small_base();
  const CostSource source = app::make_cost_source(base, "cpu");
  for (const int world : {2, 4, 8}) {
    for (const MeshShape& mesh : app::legal_meshes(base, world, 8)) {
      if (app::samples_of_step(base) / mesh.size(Group::batch) < mesh.pp) continue;  // 1f1b needs more
      INFO(mesh.describe());
      for (const bool reshard : {false, true}) {
        const app::Plan plan = plan_on(base, even_layout(base, mesh, "1f1b", reshard, reshard));
        const app::CostModel costs(plan, source);
        const app::Prediction p = app::predict(plan, costs);
        CHECK(p.step_time > 0);
        CHECK(p.tokens_per_s == Approx(8 * 16 / p.step_time));
        int64_t optimizer = 0;
        for (int rank = 0; rank < mesh.pp; ++rank) {
          const app::RankBytes& bytes = p.bytes[rank];
          optimizer += bytes.optimizer;
          CHECK(bytes.activations > 0);
          const schedule::RankTime& time = p.pipeline.ranks[rank];
          CHECK(time.busy + time.idle() + p.barrier[rank] + p.optimizer_time[rank] == Approx(p.step_time));
        }
        // All ranks of a replica together hold each moment at least once, and not much more.
        const double whole = 8.0 * (2 * 256 * 32 + 32 + 4 * (32 * 8 * 8 + 8 * 4 * 32 + 3 * 32 * 48 + 2 * 32));
        const double held = static_cast<double>(optimizer) * mesh.dp_shard * mesh.cp * mesh.tp;
        CHECK(held >= whole);
        CHECK(held <= 1.25 * whole);
        for (const app::ExchangeTime& time : app::exchange_times(plan, costs, p)) {
          CHECK(time.total > 0);
          CHECK(time.exposed >= 0);
        }
      }
    }
  }
}

TEST_CASE("what ranks exchange counts in a step: over slow links it takes longer, and hides behind passes") {
  const app::PlanBase base = small_base();
  const MeshShape mesh{.pp = 2, .dp_shard = 2};
  const app::Plan plan = plan_on(base, even_layout(base, mesh));
  const CostSource fast = source_with(1e12, 1e12, 0), slow = source_with(1e8, 1e8, 0);
  const app::Prediction a = app::predict(plan, fast), b = app::predict(plan, slow);
  CHECK(b.step_time > a.step_time);
  const auto times = app::exchange_times(plan, app::CostModel(plan, slow), b);
  const auto find = [&](const std::string& what) {
    return *std::ranges::find(times, what, &app::ExchangeTime::what);
  };
  CHECK(find("weights").total > 0);
  CHECK(find("gradients").exposed > 0);
  // The last group's gradients overlap with no pass; earlier ones do.
  CHECK(find("gradients").exposed < 2 * find("gradients").total);
  CHECK(find("pp").total > 0);
  // Streamed weights are gathered anew for each pass.
  const app::Plan streaming = plan_on(base, even_layout(base, mesh, "1f1b", true));
  const app::CostModel costs(streaming, slow);
  const auto streamed = app::exchange_times(streaming, costs, app::predict(streaming, costs));
  CHECK(streamed.front().what == "weights");
  CHECK(streamed.front().total == Approx(2 * 4 * find("weights").total));
}

TEST_CASE("estimates of the search are what whole predictions say") {
  const app::PlanBase base = small_base({"train.grad_accum_steps=96", "model.num_hidden_layers=8"});
  const CostSource source = source_with(2e9, 5e8, 2);
  app::FootprintCache dry_runs(base.model);
  app::ScheduleShapes shapes;
  int compared = 0;
  for (const MeshShape& mesh : {MeshShape{.pp = 2, .dp_shard = 2}, MeshShape{.pp = 4},
                                MeshShape{.dp_shard = 4}, MeshShape{.pp = 2, .dp_replicate = 2}}) {
    for (const bool streamed : {false, true}) {
      if (streamed && mesh.dp_shard == 1) continue;
      const app::Layout layout{.mesh = mesh,
                               .micro_batch_size = 1,
                               .grad_accum_steps = 96 / mesh.size(Group::batch),
                               .recompute = config::Recompute::none,
                               .reshard = streamed,
                               .every_microbatch = streamed};
      app::LayoutModel model(layout, base, source, dry_runs,
                             std::make_shared<const app::MeshLinks>(source.device, mesh));
      for (const std::string& schedule : schedule::training_schedule_names()) {
        const int stages = schedule == "1f1b" || schedule == "gpipe" || schedule.starts_with("zb_") ? 1 : 2;
        const auto estimate = model.estimate(shapes, schedule, stages);
        if (!estimate || (mesh.pp == 1 && schedule != "1f1b")) continue;
        INFO(mesh.describe() << ", " << schedule << (streamed ? ", streamed" : ""));
        app::Layout choice = even_layout(base, mesh, schedule, streamed, streamed);
        choice.stages_per_rank = stages;
        choice.layers = model.layers(mesh.pp * stages);
        const app::Plan plan = plan_on(base, choice);
        const app::Prediction p = app::predict(plan, source);
        CHECK(estimate->step_time == Approx(p.step_time).epsilon(0.02));
        CHECK(static_cast<double>(estimate->bytes.total()) ==
              Approx(static_cast<double>(p.peak_bytes())).epsilon(0.05));
        app::WholeModelCosts whole(base.model);
        CHECK(estimate->step_time >= model.least_time(whole));
        CHECK(p.peak_bytes() >= model.least_bytes(whole).total());
        ++compared;
        const app::TimeSplit split = model.split(shapes, *estimate);
        double sum = 0;
        for (const auto& [name, seconds] : split.parts()) sum += seconds;
        CHECK(sum == Approx(estimate->step_time));
      }
    }
  }
  CHECK(compared > 25);
}

TEST_CASE("the search finds the best of all layouts of a few ranks") {
  const app::PlanBase base = small_base({"train.seq_len=15"});  // which context parallelism cannot cut
  const CostSource source = source_with(3e8, 3e7, 2);
  const app::MeshSearchResult found = app::search_meshes(base, source, {.world = 4});
  REQUIRE(!found.ranking.empty());
  CHECK(found.samples == 8);
  double best = 1e9;
  for (const MeshShape& mesh : app::legal_meshes(base, 4, 8)) {
    const int64_t samples = 8 / mesh.size(Group::batch);
    for (int64_t size = 1; size <= samples; size *= 2) {
      for (const std::string schedule : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
        app::Layout choice = even_layout(base, mesh, schedule);
        choice.micro_batch_size = size;
        choice.grad_accum_steps = samples / size;
        if (choice.grad_accum_steps < mesh.pp) continue;
        for (const bool reshard : {false, true}) {
          for (const bool every : {false, true}) {
            if (mesh.dp_shard == 1 && (reshard || every)) continue;
            best = std::min(best, app::predict(plan_on(base, choice), source).step_time);
          }
        }
      }
    }
  }
  CHECK(found.ranking.front().step_time <= best * 1.001);
  CHECK(found.ranking.front().step_time > 0.5 * best);
  for (const app::Candidate& candidate : found.ranking) {
    CHECK(candidate.layout.mesh.world_size() == 4);
    CHECK(candidate.layout.micro_batch_size * candidate.layout.grad_accum_steps *
              candidate.layout.mesh.size(Group::batch) ==
          8);
  }
}

TEST_CASE("tight memory makes ranks share parameters") {
  // One layer: no pipeline helps.
  const app::PlanBase base = small_base({"model.num_hidden_layers=1", "train.seq_len=15",
                                         "model.num_attention_heads=1", "model.num_key_value_heads=1"});
  const CostSource source = source_with(1e9, 1e9, 0);
  const app::MeshSearchResult roomy = app::search_meshes(base, source, {.world = 4});
  const MeshShape replicas{.dp_replicate = 4};
  const double whole =
      static_cast<double>(app::predict(plan_on(base, even_layout(base, replicas)), source).peak_bytes());
  REQUIRE(!roomy.ranking.empty());
  const app::MeshSearchResult tight = app::search_meshes(base, source, {.world = 4, .budget = 0.7 * whole});
  REQUIRE(!tight.ranking.empty());
  for (const app::Candidate& candidate : tight.ranking) {
    CHECK(candidate.layout.mesh.size(Group::fsdp) > 1);
    CHECK(static_cast<double>(candidate.bytes.total()) <= 0.7 * whole);
  }
  CHECK(tight.ranking.front().step_time >= roomy.ranking.front().step_time * (1 - 1e-9));
  CHECK(mentions(tight.losers, "dp_replicate", "memory: "));
  const app::MeshSearchResult none = app::search_meshes(base, source, {.world = 4, .budget = 0.01 * whole});
  CHECK(none.ranking.empty());
  CHECK(mentions(none.losers, "dp_shard", "memory: at least"));
  CHECK_THAT(render_meshes(none, base, source, {.world = 4, .budget = 0.01 * whole}),
             contains_text("nothing fits"));
}

TEST_CASE("the first of the ranking fits by what it takes exactly") {
  // With 15 samples, 4 ranks take rounds of 5 microbatches: more than 4 are in flight.
  const app::PlanBase base =
      small_base({"train.grad_accum_steps=15", "train.seq_len=15", "model.num_hidden_layers=8",
                  "model.num_attention_heads=1", "model.num_key_value_heads=1"});
  const CostSource source = source_with(1e11, 1e11, 0);
  const auto first = [&](double budget) {
    const app::MeshSearchResult found =
        app::search_meshes(base, source, {.world = 4, .budget = budget, .rows = 1});
    return found.ranking.empty() ? std::nullopt : std::optional(found.ranking.front());
  };
  const auto exact = [&](const app::Candidate& candidate) {
    return app::predict(plan_on(base, candidate.layout), source);
  };
  double budget = 0;
  int searches = 0;
  for (auto candidate = first(budget); candidate; candidate = first(budget)) {
    const app::Prediction p = exact(*candidate);
    CAPTURE(budget, candidate->layout.overrides(base.job, true));
    CHECK(candidate->fits);
    CHECK(candidate->bytes.total() == p.peak_bytes());
    CHECK(candidate->step_time == p.step_time);
    if (budget > 0) REQUIRE(static_cast<double>(p.peak_bytes()) <= budget);
    budget = static_cast<double>(p.peak_bytes()) - 1;  // the next one takes less
    ++searches;
  }
  CHECK(searches > 5);
}

TEST_CASE("steps that interleaved schedules take in longer rounds are estimated as well as others") {
  const app::PlanBase base = small_base({"train.grad_accum_steps=36", "model.num_hidden_layers=16"});
  const CostSource source = source_with(2e9, 5e8, 2);
  app::FootprintCache dry_runs(base.model);
  app::ScheduleShapes shapes;
  int compared = 0;
  // Three rounds of 5, seven of 9, and no whole rounds: then interleaved schedules do not exist.
  for (const auto& [pp, m] : {std::pair{4, 15}, std::pair{8, 63}, std::pair{4, 18}}) {
    const MeshShape mesh{.pp = pp};
    const app::Layout layout{
        .mesh = mesh, .micro_batch_size = 1, .grad_accum_steps = m, .recompute = config::Recompute::none};
    app::LayoutModel model(layout, base, source, dry_runs,
                           std::make_shared<const app::MeshLinks>(source.device, mesh));
    for (const std::string schedule : {"interleaved_1f1b", "interleaved_zb", "1f1b", "zbv"}) {
      const int stages = schedule == "1f1b" ? 1 : 2;
      if (m == 18 && schedule.starts_with("interleaved")) continue;
      const auto estimate = model.estimate(shapes, schedule, stages);
      REQUIRE(estimate);
      CAPTURE(pp, m, schedule);
      app::Layout choice = even_layout(base, mesh, schedule);
      choice.grad_accum_steps = m;
      choice.stages_per_rank = stages;
      choice.layers = model.layers(mesh.pp * stages);
      const app::Prediction p = app::predict(plan_on(base, choice), source);
      CHECK(estimate->step_time == Approx(p.step_time).epsilon(0.02));
      CHECK(static_cast<double>(estimate->bytes.total()) ==
            Approx(static_cast<double>(p.peak_bytes())).epsilon(0.02));
      ++compared;
    }
  }
  CHECK(compared == 10);
}

TEST_CASE("slow links between hosts carry a pipeline, not sums of gradients") {
  const app::PlanBase base = small_base({"train.grad_accum_steps=64", "train.seq_len=15"});
  const CostSource slow = source_with(1e11, 2e6, 4);
  const app::MeshSearchResult found = app::search_meshes(base, slow, {.world = 8, .order_effort = 10});
  REQUIRE(!found.ranking.empty());
  const MeshShape& best = found.ranking.front().layout.mesh;
  CHECK(best.pp > 1);
  const app::MeshLinks links(slow.device, best);
  CHECK_FALSE(links.of(Group::stage).between_hosts);
  CHECK(mentions(found.losers, "dp_shard", "gradients"));
  // A searched order is faster still.
  REQUIRE(found.refined);
  CHECK(found.refined->is_order());
  CHECK(found.refined->step_time < found.ranking.front().step_time);
  CHECK_THAT(app::render_meshes(found, base, slow, {.world = 8}), contains_text("refined: search on "));
}

TEST_CASE("slow links between hosts keep tensor parallelism within a host") {
  // One sample a step with an odd length: only layers and their matrices can be divided.
  const app::PlanBase base = small_base(
      {"train.grad_accum_steps=1", "train.seq_len=15", "model.num_hidden_layers=2", "model.hidden_size=1024",
       "model.intermediate_size=4096", "model.num_key_value_heads=4", "model.head_dim=64"});
  const auto best_with = [&](double between) {
    return app::search_meshes(base, source_with(1e12, between, 2), {.world = 4});
  };
  const app::MeshSearchResult fast = best_with(1e12), slow = best_with(1e6);
  REQUIRE(!fast.ranking.empty());
  REQUIRE(!slow.ranking.empty());
  CHECK(fast.ranking.front().layout.mesh == MeshShape{.tp = 4});
  CHECK(slow.ranking.front().layout.mesh == MeshShape{.pp = 2, .tp = 2});
  CHECK(mentions(slow.losers, "tp", "tp +"));
  CHECK(mentions(fast.losers, "pp x tp", "bubble +"));
}

TEST_CASE("the report says what was kept, what won, and why the others lost") {
  const app::PlanBase base = small_base({"train.seq_len=15"});
  const CostSource source = source_with(1e9, 1e8, 2);
  const app::SearchOptions options{.world = 4, .budget = 1e9};
  const app::MeshSearchResult found = app::search_meshes(base, source, options);
  const std::string text = render_meshes(found, base, source, options, 80);
  for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    CHECK(text.find('\n', begin) - begin <= 80);
  CHECK_THAT(text, contains_text("kept: 8 samples of 15 tokens a step"));
  CHECK_THAT(text, contains_text("hosts of 2 ranks"));
  CHECK_THAT(text, contains_text("why the others lose"));
  const auto json = nlohmann::json::parse(meshes_json(found, base, source, options));
  CHECK(json["ranking"].size() == found.ranking.size());
  CHECK(json["losers"].size() == found.losers.size());
  double sum = 0;
  for (const auto& [part, seconds] : json["time"].items()) sum += seconds.get<double>();
  CHECK(sum == Approx(json["ranking"][0]["step_time"].get<double>()));
  // The keys it prints are keys of a job.
  for (const std::string& key : found.ranking.front().layout.overrides(base.job, true))
    CHECK(config::find_option(key.substr(0, key.find('='))) != nullptr);
  CHECK_THROWS_WITH(app::search_meshes(base, source, {.world = 7}), contains_text("no mesh of 7 ranks"));
  const std::string csv = meshes_csv(found, base);
  CHECK(std::ranges::count(csv, '\n') == std::ssize(found.ranking) + 1 + (found.refined ? 1 : 0));
}

TEST_CASE("each mesh of the ranking is a job, with the step that the search says") {
  const app::PlanBase base = small_base();
  const CostSource source = app::make_cost_source(base, "cpu");
  const app::MeshSearchResult few = app::search_meshes(base, source, {.world = 4, .rows = 3});
  CHECK(few.ranking.size() == 3);
  const app::MeshSearchResult all = app::search_meshes(base, source, {.world = 4, .rows = 1000});
  CHECK(all.ranking.size() > 10);
  CHECK(all.ranking.size() <= static_cast<size_t>(all.meshes));
  CHECK(all.ranking.front().step_time == few.ranking.front().step_time);
  // They are keys for any job, even if it sets dp or keys that act only on its own layout.
  const std::string texts[] = {
      small_job_text(), small_job_text() + "[distributed]\ndp = 2\nreduce_gradients = \"microbatch\"\n",
      small_job_text() + "[distributed]\npp = 2\npp_head_weight = 1\n",
      small_job_text() + "[distributed]\npp = 2\npp_head = \"spread\"\npp_sequence_slices = 2\n"};
  size_t turn = 0;
  for (const app::Candidate& candidate : all.ranking) {
    const std::string& text = texts[turn++ % std::size(texts)];
    const Overrides keys =
        candidate.layout.overrides(small_plan(text, "run", {"train.grad_accum_steps=2"}).job, true);
    CAPTURE(keys);
    const app::Plan plan = small_plan(text, "run", keys);
    CHECK(plan.mesh == candidate.layout.mesh);
    CHECK((plan.job.distributed.pp_head == config::HeadPlace::last && !plan.compute.spread_head));
    CHECK(plan.job.distributed.pp_sequence_slices == 1);
    CHECK(pipeline::layers_per_stage(plan.layers) == pipeline::layers_per_stage(candidate.layout.layers));
    CHECK(app::predict(plan, source).step_time == Approx(candidate.step_time).epsilon(0.02));
  }
}

TEST_CASE("a search takes FP8 as given: its rates, and the widths that it admits") {
  const Overrides job = {
      "run.device=\"cuda\"",       "model.hidden_size=4096",       "model.intermediate_size=14352",
      "model.num_hidden_layers=4", "model.num_attention_heads=32", "model.num_key_value_heads=8",
      "model.head_dim=128",        "train.seq_len=4096",           "train.dtype=bf16"};
  const app::PlanBase bf16 = small_base(job), fp8 = small_base(with(job, {"train.fp8=rowwise"}));
  const CostSource source = app::make_cost_source(bf16, "h100");
  const auto ranking = [&](const app::PlanBase& base) {
    return app::search_meshes(base, source, {.world = 4, .rows = 1000}).ranking;
  };
  const std::vector<app::Candidate> all = ranking(bf16), found = ranking(fp8);
  const auto cuts_widths = [](const app::Candidate& candidate) { return candidate.layout.mesh.tp > 1; };
  CHECK(std::ranges::any_of(all, cuts_widths));
  CHECK(std::ranges::none_of(found, cuts_widths));  // 7,176 is no multiple of 16
  REQUIRE(found.size() > 3);
  for (const app::Candidate& candidate : found) {
    const app::Plan plan = plan_on(fp8, candidate.layout);
    CHECK(plan.model.fp8);
    CHECK(candidate.step_time < app::predict(plan_on(bf16, candidate.layout), source).step_time);
  }
}

TEST_CASE("slices that a job leaves open leave the meshes of context parallelism") {
  app::PlanBase base = small_base();
  base.job.distributed.pp_schedule = "auto";
  base.job.distributed.pp_sequence_slices = 0;
  CHECK(app::legal_meshes(base, 8, 8).size() == app::legal_meshes(small_base(), 8, 8).size());
  base.job.distributed.pp_sequence_slices = 2;  // asks for slices
  const auto sliced = app::legal_meshes(base, 8, 8);
  REQUIRE_FALSE(sliced.empty());
  for (const MeshShape& mesh : sliced) CHECK(mesh.cp == 1);
}

TEST_CASE("the first meshes are refined with the job's place of the head and slices") {
  app::PlanBase base = small_base({"train.grad_accum_steps=64", "train.seq_len=15"});
  const CostSource source = source_with(1e11, 2e6, 4);
  const auto refined = [&](config::HeadPlace head, int64_t slices) {
    base.job.distributed.pp_head = head;
    base.job.distributed.pp_sequence_slices = slices;
    const app::MeshSearchResult found = app::search_meshes(base, source, {.world = 8});
    REQUIRE(!found.ranking.empty());
    for (const app::Candidate& candidate : found.ranking) {
      CHECK_FALSE(candidate.layout.spread_head);
      CHECK(candidate.layout.sequence_slices == 1);
    }
    if (found.refined) {
      CHECK(found.refined->layout.mesh.world_size() == 8);
      CHECK(app::predict(plan_on(base, found.ranking.front().layout), source).step_time ==
            found.ranking.front().step_time);
    }
    return std::pair(found.refined, found.ranking.front().step_time);
  };
  const auto [open, plain] = refined(config::HeadPlace::automatic, 0);
  if (open) CHECK(open->step_time < 0.999 * plain);
  // A job gets the head and slices it asks for, even if that is slower.
  const auto [spread, as_plain] = refined(config::HeadPlace::spread, 1);
  REQUIRE(spread);
  CHECK((spread->layout.spread_head && spread->layout.sequence_slices == 1));
  const auto [sliced, still_plain] = refined(config::HeadPlace::last, 2);
  REQUIRE(sliced);
  CHECK((!sliced->layout.spread_head && sliced->layout.sequence_slices == 2));
  CHECK(sliced->layout.mesh.cp == 1);
}

TEST_CASE("no schedule is simulated under two names") {
  app::ScheduleShapes shapes;
  const auto repeats = [&](const std::string& name, int stages) {
    return shapes.repeats_another({.name = name, .ranks = 4, .microbatches = 8, .stages_per_rank = stages},
                                  {});
  };
  CHECK(repeats("looped_bfs", 1));
  CHECK_FALSE(repeats("looped_bfs", 2));
  CHECK_FALSE(repeats("gpipe", 1));
  CHECK_FALSE(repeats("1f1b", 1));
  CHECK(repeats("interleaved_1f1b", 1));
  CHECK_FALSE(repeats("interleaved_1f1b", 2));
  CHECK(repeats("interleaved_zb", 1));
  CHECK_FALSE(repeats("zb_h1", 1));
  CHECK_FALSE(repeats("zbv", 2));
}

TEST_CASE("a mesh of 1,024 GPUs for 70 B parameters is found in seconds") {
  const app::PlanBase base = llama_70b(2048);
  const CostSource source = app::make_cost_source(base, "h100");
  const app::SearchOptions options{.world = 1024, .budget = 80e9};
  // Processor time: other tests may run beside this one.
  const std::clock_t begin = std::clock();
  const app::MeshSearchResult found = app::search_meshes(base, source, options);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  REQUIRE(!found.ranking.empty());
  CHECK(seconds < 16);
  const app::Candidate& best = found.ranking.front();
  CHECK(static_cast<double>(best.bytes.total()) <= 80e9);
  CHECK(best.layout.mesh.tp <= 8);
  CHECK(mentions(found.losers, "dp_replicate", "memory: at least"));
}

// The rules for a job beyond its file: schedules, stages, splits.
#include "app/resolve/load_plan.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "app/forecast/device_model.h"
#include "app/forecast/prediction.h"
#include "app/forecast/search.h"
#include "core/base/error.h"
#include "core/config/job_paths.h"
#include "core/config/loader.h"
#include "core/config/options.h"
#include "parallel/comm/communicator.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/render/csv.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using pptrain::UsageError;
using pptrain::test::contains_text;
using pptrain::test::Overrides;
using pptrain::test::with;

namespace {

const std::filesystem::path root = pptrain::test::source_dir();

pptrain::app::Plan loaded(const Overrides& overrides) {
  return pptrain::test::small_plan(pptrain::test::small_job_text(), "run", overrides);
}

std::string refusal(const Overrides& overrides) {
  try {
    loaded(overrides);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the schedules and devices that options propose are those there are") {
  const auto words = [](const char* name) {
    std::vector<std::string> known = pptrain::config::find_option(name)->known_words;
    std::ranges::sort(known);
    return known;
  };
  std::vector<std::string> schedules = pptrain::schedule::training_schedule_names();
  schedules.insert(schedules.end(), {"auto", "search"});
  std::ranges::sort(schedules);
  CHECK(words("distributed.pp_schedule") == schedules);
  const auto names = pptrain::app::device_names();
  std::vector<std::string> devices(names.begin(), names.end());
  std::ranges::sort(devices);
  CHECK(words("distributed.pp_costs") == devices);
}

TEST_CASE("schedules are found by any spelling, and their stages filled in") {
  const auto resolved = [](const std::string& name) {
    return loaded({"distributed.pp=2", "train.grad_accum_steps=4", "distributed.pp_schedule=" + name})
        .job.distributed;
  };
  CHECK(resolved("1F1B").pp_schedule == "1f1b");
  CHECK(resolved("1F1B").pp_stages_per_rank == 1);
  CHECK(resolved("ScheduleInterleaved1F1B").pp_schedule == "interleaved_1f1b");
  CHECK(resolved("Interleaved-1F1B").pp_stages_per_rank == 2);
  CHECK(resolved("ScheduleZBVZeroBubble").pp_schedule == "zbv");
  CHECK(resolved("DualPipeV").pp_schedule == "dualpipe_v");
}

TEST_CASE("what a schedule does not allow is laid at the key to change") {
  CHECK(refusal({"distributed.pp_schedule=1f2b"}) ==
        fmt::format("--set distributed.pp_schedule=1f2b: \"1f2b\" is not a schedule; did you mean \"1f1b\"? "
                    "Valid: {}, auto, search, or a file ending in .csv",
                    fmt::join(pptrain::schedule::training_schedule_names(), ", ")));
  CHECK_THAT(refusal({"distributed.pp_schedule=seq1f1b"}),
             contains_text("give 1f1b and distributed.pp_sequence_slices"));
  CHECK_THAT(refusal({"distributed.pp_schedule=inference"}), contains_text("it cannot train"));
  CHECK_THAT(refusal({"train.grad_accum_steps=3", "distributed.pp=4"}),
             contains_text("--set train.grad_accum_steps=3: 1f1b on 4 ranks needs at least 4 microbatches"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=zbv", "distributed.pp_stages_per_rank=3"}),
             contains_text("--set distributed.pp_stages_per_rank=3: zbv has exactly 2 stages per rank"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=dualpipe_v", "train.grad_accum_steps=3"}),
             contains_text("--set train.grad_accum_steps=3: dualpipe_v on 2 ranks needs at least 4"));
}

TEST_CASE("a split must fill the stages with the model's layers") {
  const std::vector<std::string> two = {"distributed.pp=2", "train.grad_accum_steps=2"};
  const auto with = [&](const std::string& split) {
    Overrides overrides = two;
    overrides.push_back("distributed.pp_split=" + split);
    return overrides;
  };
  const auto layers = [&](const std::string& split) { return loaded(with(split)).layers; };
  CHECK(layers("[3, 1]") == pptrain::pipeline::LayerAssignment{{0, 3}, {3, 4}});
  CHECK(layers("*|1") == pptrain::pipeline::LayerAssignment{{0, 3}, {3, 4}});
  CHECK(layers("Et|tttL") == pptrain::pipeline::LayerAssignment{{0, 1}, {1, 4}});
  CHECK_THAT(refusal(with("[1, 1, 2]")), contains_text("3 numbers for 2 stages"));
  CHECK_THAT(refusal(with("[1, 2]")), contains_text("these are 3 layers, but the model has 4"));
  CHECK_THAT(refusal(with("odd")), contains_text("layout \"odd\": \"odd\" is not a stage"));
  CHECK_THAT(refusal({"distributed.pp=5", "train.grad_accum_steps=8"}),
             contains_text("--set distributed.pp=5: 4 layers cannot fill 5 stages"));
  CHECK_THAT(refusal({"distributed.pp=4", "train.grad_accum_steps=8", "distributed.pp_schedule=zbv"}),
             contains_text("4 layers cannot fill 8 stages"));
  std::vector<std::string> weighted = with("[3, 1]");
  weighted.push_back("distributed.pp_head_weight=1");
  CHECK_THAT(refusal(weighted), contains_text("acts only with an even split of several stages"));
}

TEST_CASE("recompute is one word, or one for each stage") {
  const auto with = [](const std::string& recompute) {
    return Overrides{"distributed.pp=2", "train.grad_accum_steps=2", "train.recompute=" + recompute};
  };
  CHECK(loaded(with("cheap")).job.train.recompute.words == std::vector<std::string>{"cheap"});
  CHECK(loaded(with(R"(["full", "none"])")).job.train.recompute.words ==
        std::vector<std::string>{"full", "none"});
  CHECK_THAT(refusal(with(R"(["full", "none", "none"])")), contains_text("3 words for 2 stages"));
  CHECK(loaded(with("full:3/none:1,cheap")).job.train.recompute.words ==
        std::vector<std::string>{"full:3/none:1", "cheap"});
  for (const std::string wrong :
       {"full:3/none", "full:0", "auto:1", "full:/none:1", "full:1/", "full:-1", "some:1", ":1"})
    CHECK_THAT(refusal(with(wrong)), contains_text("is not a valid value"));
  CHECK_THAT(refusal(with(R"(["full", "some"])")), contains_text("\"some\" is not a valid value"));
  CHECK(loaded(with(R"(["auto"])")).job.train.recompute.words == std::vector<std::string>{"none"});
  // Refused at its key, whether the stages are given or searched.
  const std::string refused = "recompute=[\"full\", \"auto\"]: auto is for all stages";
  Overrides several = with(R"(["full", "auto"])");
  CHECK_THAT(refusal(several), contains_text(refused));
  several.emplace_back("distributed.pp_schedule=auto");
  CHECK_THAT(refusal(several), contains_text(refused));
  const pptrain::test::TemporaryFolder folder;
  const std::filesystem::path job = folder.path() / "job.toml";
  std::ofstream(job) << pptrain::test::small_job_text();
  CHECK_THROWS_WITH(pptrain::app::load_plan_base(job.string(), several), contains_text(refused));
}

TEST_CASE("a layout reads back from the job that its facts were written into") {
  using namespace pptrain::app;
  for (const bool other : {false, true}) {
    const Layout layout{
        .mesh = {},
        .micro_batch_size = other ? 3 : 1,
        .grad_accum_steps = other ? 7 : 1,
        .recompute = other ? pptrain::config::Recompute::full : pptrain::config::Recompute::none,
        .reshard = other,
        .every_microbatch = other,
        .schedule = other ? "zbv" : "1f1b",
        .spread_head = other,
        .sequence_slices = other ? 5 : 1,
        .stages_per_rank = other ? 2 : 1,
        .layers = pptrain::pipeline::compute_layer_assignment(8, other ? 4 : 1, 0, 0)};
    pptrain::config::JobConfig job;
    job.model.num_hidden_layers = 8;
    for (const LayoutFact& fact : layout_facts()) fact.write(layout, job);
    Layout read = layout_of(job, layout.mesh);
    read.layers = split_layers(job, other ? 4 : 1);
    CHECK(read == layout);
    for (const LayoutFact& fact : layout_facts()) {
      CAPTURE(fact.option);
      CHECK(fact.same(read, layout));
      CHECK_FALSE(fact.text(layout).empty());
    }
  }
}

TEST_CASE("the search asks nothing of the schedule that it replaces") {
  const pptrain::test::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "job.toml";
  std::ofstream(file) << pptrain::test::small_job_text();
  const auto base = [&](const Overrides& overrides) {
    return pptrain::app::load_plan_base(file.string(), overrides);
  };
  const auto found = [&](const Overrides& overrides) {
    const pptrain::app::PlanBase job = base(overrides);
    return pptrain::app::search(job, pptrain::app::make_cost_source(job, "cpu"), {.microbatches = true});
  };
  // 1f1b needs 4 microbatches; 4 samples a step give 4.
  const Overrides few = {"distributed.pp=4", "train.grad_accum_steps=2", "train.micro_batch_size=2"};
  CHECK_THAT(refusal(few), contains_text("1f1b on 4 ranks needs at least 4 microbatches"));
  CHECK(std::ranges::any_of(found(few), [](const pptrain::app::Candidate& candidate) {
    return candidate.layout.schedule == "1f1b" && candidate.layout.grad_accum_steps == 4;
  }));
  CHECK(base(with(few, {"distributed.pp_schedule=/nowhere.csv"})).mesh.pp == 4);
  // It tries several stages per rank, unless the job says how many.
  const Overrides two = {"distributed.pp=2", "train.grad_accum_steps=4"};
  const auto stages = [&](const Overrides& overrides) {
    std::set<int64_t> counts;
    for (const auto& candidate : found(overrides)) counts.insert(candidate.layout.stages_per_rank);
    return counts;
  };
  CHECK(stages(two) == std::set<int64_t>{1, 2});
  CHECK(stages(with(two, {"distributed.pp_stages_per_rank=2"})) == std::set<int64_t>{2});
  // An unknown name is still refused.
  CHECK_THROWS_WITH(base({"distributed.pp_schedule=1f2b"}), contains_text("did you mean \"1f1b\"?"));
}

TEST_CASE(
    "recompute is none on CPUs and cheap on GPUs where a job leaves it open, less where a search finds "
    "room") {
  const auto recompute = [](const Overrides& overrides) { return loaded(overrides).job.train.recompute; };
  using enum pptrain::config::Recompute;
  CHECK(recompute({}) == none);
  CHECK(recompute({"train.recompute=auto"}) == none);
  const Overrides gpu = {"run.device=cuda"};
  CHECK(recompute(gpu) == cheap);
  CHECK(recompute(with(gpu, {"train.recompute=none"})) == none);
  CHECK(recompute(with(gpu, {"train.recompute=full"})) == full);
  const auto open = [&](const char* option) {
    return recompute(with(gpu, {"distributed.pp=2", "train.grad_accum_steps=2", option}));
  };
  CHECK(open("distributed.pp_split=cost") == cheap);
  CHECK(open("distributed.pp_schedule=auto") == none);
  CHECK(loaded(gpu).chooses_recompute);
  CHECK_FALSE(loaded(with(gpu, {"train.recompute=cheap"})).chooses_recompute);
}

TEST_CASE("heads that no GPU computes are refused before anything starts") {
  const Overrides odd = {"model.head_dim=12", "train.dtype=bf16"};
  CHECK(refusal(odd).empty());  // on the CPU
  CHECK(refusal(with(odd, {"run.device=cuda"})) ==
        "--set model.head_dim=12: heads of 12 elements: on a GPU attention in bf16 takes multiples of 8 up "
        "to 256 (in "
        "fp32 multiples of 4)");
  CHECK_THAT(refusal({"run.device=cuda", "train.dtype=bf16", "model.head_dim=264"}),
             contains_text("up to 256"));
  CHECK(refusal({"run.device=cuda", "train.dtype=bf16", "model.head_dim=256"}).empty());
  CHECK(refusal({"run.device=cuda", "train.dtype=fp32", "model.head_dim=12"}).empty());
  CHECK_THAT(refusal({"run.device=cuda", "train.dtype=fp32", "model.head_dim=6"}),
             contains_text("in fp32 takes multiples of 4"));
  // A job for the CPU with the costs of a GPU.
  const pptrain::app::Plan plan = loaded(odd);
  CHECK_NOTHROW(pptrain::app::make_cost_source(plan, "cpu"));
  CHECK_THROWS_AS(pptrain::app::make_cost_source(plan, "h100"), UsageError);
}

TEST_CASE("a schedule from a file must be the job's, and sound") {
  const std::string file = (root / "configs/schedules/1f1b_p2_m4_with_communication.csv").string();
  const std::vector<std::string> fitting = {"distributed.pp=2", "train.grad_accum_steps=4",
                                            "distributed.pp_schedule=" + file};
  CHECK(loaded(fitting).job.distributed.pp_stages_per_rank == 1);
  std::vector<std::string> other = fitting;
  other[1] = "train.grad_accum_steps=5";
  CHECK_THAT(refusal(other), contains_text("grad_accum_steps = 5, but the schedule in") &&
                                 contains_text("has 4 microbatches"));
  CHECK_THAT(refusal({"distributed.pp=2", "distributed.pp_schedule=/nowhere.csv"}),
             contains_text("/nowhere.csv"));
  const pptrain::test::TemporaryFolder folder;
  std::ofstream(folder.path() / "bad.csv") << "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n";
  CHECK_THAT(refusal({"distributed.pp=2", "train.grad_accum_steps=2",
                      "distributed.pp_schedule=" + (folder.path() / "bad.csv").string()}),
             contains_text(">1F1<"));
}

TEST_CASE("the job names the axes in the order of the mesh") {
  for (const pptrain::mesh::Axis axis : pptrain::mesh::axes) {
    const auto& key = pptrain::config::axis_keys.at(static_cast<size_t>(axis));
    CHECK(key.option == fmt::format("distributed.{}", pptrain::mesh::name(axis)));
  }
}

TEST_CASE("a plan on another mesh has the mesh's sizes in its job") {
  const pptrain::mesh::MeshShape mesh{.pp = 2, .dp_replicate = 3, .dp_shard = 4, .cp = 5, .tp = 6, .ep = 8};
  const pptrain::app::PlanBase base = on_mesh(loaded({}), mesh);
  CHECK((pptrain::app::plan_base(base.job).mesh == mesh));
  CHECK(base.job.distributed.cp == 5);
  CHECK(base.job.distributed.ep == 8);
}

TEST_CASE("a plan holds what every reader of the job needs") {
  const pptrain::app::Plan plan =
      loaded({"distributed.pp=2", "distributed.dp_replicate=3", "train.grad_accum_steps=4"});
  CHECK(plan.mesh.world_size() == 6);
  CHECK(plan.model.layers == 4);
  CHECK(plan.layers == pptrain::pipeline::LayerAssignment{{0, 2}, {2, 4}});
  CHECK(plan.schedule.has_communication());
  CHECK_FALSE(plan.compute.has_communication());
  CHECK(plan.compute.microbatches == 4);
}

TEST_CASE("what auto and cost chose reads back as the same plan") {
  const Overrides base = {"distributed.pp=2", "train.grad_accum_steps=4", "model.hidden_size=64"};
  for (const std::string open : {"distributed.pp_schedule=auto", "distributed.pp_split=cost"}) {
    const pptrain::app::Plan plan = loaded(pptrain::test::with(base, {open}));
    CHECK(plan.job.distributed.pp_schedule == plan.schedule.name);
    CHECK(plan.job.distributed.pp_split.layers == pptrain::pipeline::layers_per_stage(plan.layers));
    const pptrain::app::Plan again =
        pptrain::app::parse_plan(pptrain::config::to_toml(plan.job), "resolved.toml", {});
    CHECK(again.job == plan.job);
    CHECK(again.layers == plan.layers);
    if (plan.order != pptrain::app::Order::searched)
      CHECK(fingerprint(again) == fingerprint(plan));  // else it is searched for longer
  }
}

TEST_CASE("a searched schedule is the same each time, no slower than the named ones, and kept as a file") {
  const Overrides job = {"distributed.pp=2", "train.grad_accum_steps=4", "model.hidden_size=64",
                         "distributed.pp_costs=h100", "distributed.pp_schedule=Search"};
  const pptrain::app::Plan plan = loaded(job);
  CHECK(plan.job.distributed.pp_schedule == "search");
  REQUIRE(plan.order == pptrain::app::Order::searched);
  CHECK_FALSE(plan.named.empty());
  const auto source = pptrain::app::make_cost_source(plan, "h100");
  CHECK(plan.named_ratio >= 1);
  const pptrain::app::Plan named = loaded(with(job, {"distributed.pp_schedule=" + plan.named}));
  CHECK(pptrain::app::predict(named, source).step_time / pptrain::app::predict(plan, source).step_time ==
        Approx(plan.named_ratio));
  CHECK(fingerprint(loaded(job)) == fingerprint(plan));

  const pptrain::config::JobConfig saved = job_to_save(plan);
  CHECK(saved.distributed.pp_schedule ==
        std::filesystem::absolute(std::filesystem::path(plan.job.run.dir) / "schedule.csv").string());
  CHECK(job_to_save(loaded({})) == pptrain::config::with_absolute_paths(loaded({}).job));
  // The numbers show what is missing.
  const std::string refused = refusal(with(job, {"distributed.pp_memory_gb=1e-6"}));
  const std::regex numbers("no schedule fits into (\\S+) GB a rank: .* needs (\\S+) GB\\.");
  std::smatch found;
  REQUIRE(std::regex_search(refused, found, numbers));
  CHECK(std::stod(found.str(1)) < std::stod(found.str(2)));
}

TEST_CASE("a kept order reads back, whatever a microbatch is: whole or in slices, the head spread or not") {
  const pptrain::test::TemporaryFolder folder;
  const Overrides base = {"distributed.pp=2", "train.grad_accum_steps=4",
                          "run.dir=" + folder.path().string()};
  const Overrides slices = {"distributed.pp_sequence_slices=2"}, spread = {"distributed.pp_head=spread"};
  const Overrides search = {"distributed.pp_schedule=search"}, zbv = {"distributed.pp_schedule=zbv"};
  const Overrides chosen = {"distributed.pp_schedule=auto", "distributed.pp_sequence_slices=0",
                            "distributed.pp_head=auto"};
  for (const Overrides& more : {search, with(search, slices), with(zbv, spread), with(zbv, spread, slices),
                                with(search, spread, slices), chosen}) {
    CAPTURE(more);
    const pptrain::app::Plan plan =
        pptrain::app::parse_plan(pptrain::test::small_job_text(), "small.toml", with(base, more));
    if (plan.keeps_schedule())
      pptrain::test::write_file(folder.path() / "schedule.csv", pptrain::schedule::write_csv(plan.compute));
    const pptrain::config::JobConfig saved = job_to_save(plan);
    const pptrain::app::Plan again =
        pptrain::app::parse_plan(pptrain::config::to_toml(saved), "resolved.toml", {});
    CHECK(job_to_save(again) == saved);
    CHECK((again.schedule.actions == plan.schedule.actions));
    CHECK(again.layers == plan.layers);
  }
}

TEST_CASE("jobs of every kind of data read back to themselves, in full and as they were given") {
  const Overrides texts = {"data.format=jsonl", "data.tokenizer=t.json"};
  const std::string two = R"(data.sources=[{name="a", path="a.txt", weight=2, val_fraction=0.5},
                             {name="b", path=["b*.bin", "c"], format="bin", val_path="d.bin"}])";
  std::string no_path = pptrain::test::small_job_text();
  no_path.erase(no_path.find("[data]"), no_path.find("[optimizer]") - no_path.find("[data]"));
  std::string random = no_path;
  random.erase(random.find("[eval]"), random.find("[checkpoint]") - random.find("[eval]"));
  const std::vector<std::pair<std::string, Overrides>> jobs = {
      {pptrain::test::small_job_text(), texts},
      {pptrain::test::small_job_text(), with(texts, {"data.prompt_key=p", "data.completion_key=c"})},
      {pptrain::test::small_job_text(), with(texts, {"data.tokens_key=t", "data.labels_key=l"})},
      {pptrain::test::small_job_text(),
       with(texts, {"data.messages_key=m", "data.chat.template=qwen", "data.cache=cache"})},
      {pptrain::test::small_job_text(),
       with(texts, {"data.messages_key=m", "data.chat.user_prefix=U", "data.chat.assistant_prefix=A"})},
      {pptrain::test::small_job_text(),
       {"data.format=bin", "data.dtype=uint32", "data.document_end=3", "data.lengths=exact"}},
      {no_path, {two}},
      {random, {"data.format=random"}},
  };
  const pptrain::app::LoadOptions options{.needs_files = false};
  for (const auto& [text, overrides] : jobs) {
    CAPTURE(overrides);
    const pptrain::app::Plan plan = pptrain::app::parse_plan(text, "small.toml", overrides, options);
    const pptrain::config::JobConfig saved = job_to_save(plan);
    CHECK(job_to_save(pptrain::app::parse_plan(pptrain::config::to_toml(saved), "full.toml", {}, options)) ==
          saved);
    const pptrain::app::Plan again = pptrain::app::parse_plan(plan.given, "given.toml", {}, options);
    CHECK(again.given == plan.given);
    CHECK(identity(again) == identity(plan));
  }
}

TEST_CASE("the fingerprint is of what ranks must agree on") {
  const pptrain::test::TemporaryFolder folder;
  const auto csv = [&](const std::string& name, const std::string& actions) {
    std::ofstream(folder.path() / name) << actions;
    return "distributed.pp_schedule=" + (folder.path() / name).string();
  };
  const auto print = [](const Overrides& more) {
    return fingerprint(loaded(
        pptrain::test::with(Overrides{"distributed.pp=2", "train.grad_accum_steps=2", "run.dir=a"}, more)));
  };
  const std::string plain = print({});
  CHECK(plain.size() == 32);
  CHECK(plain == print({"distributed.pp_split=even"}));
  CHECK(plain != print({"distributed.pp_split=[1,3]"}));
  CHECK(plain != print({"run.seed=1"}));
  CHECK(plain != print({"distributed.pp_schedule=gpipe"}));
  // A schedule's file counts by its contents, not by its path.
  const std::string gpipe = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";
  CHECK(print({csv("a.csv", gpipe)}) == print({csv("b.csv", gpipe)}));
  CHECK(print({csv("a.csv", gpipe)}) != print({csv("b.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")}));
}

TEST_CASE("a GPU has links for the messages of the plan's head and embedding") {
  const auto links = [](const std::string& head, bool tied) {
    const pptrain::app::Plan plan =
        loaded({"run.device=cuda", "train.dtype=bf16", "model.hidden_size=64", "model.head_dim=64",
                "model.num_hidden_layers=8", "distributed.pp=8", "train.grad_accum_steps=8",
                "distributed.pp_costs=h100", "distributed.pp_head=" + head,
                fmt::format("model.tie_word_embeddings={}", tied)});
    return gpu_blocks(plan).links - 4 * pptrain::comm::Communicator::link_blocks;
  };
  CHECK(links("last", /*tied=*/false) == 0);
  CHECK(links("last", /*tied=*/true) == 2);  // the gradient's two directions
  // Both directions to and from seven ranks: inputs and terms, statistics, and the embedding.
  CHECK(links("spread", /*tied=*/false) == 3 * 14);
  CHECK(links("spread", /*tied=*/true) == 3 * 14);
}

TEST_CASE("a rank that awaits what rank 0 chooses takes it whole") {
  const Overrides base = {"distributed.pp=2", "train.grad_accum_steps=4", "model.hidden_size=64",
                          "model.num_hidden_layers=8", "distributed.pp_costs=h100"};
  const Overrides streamed = {"distributed.dp_shard=2", "distributed.reshard_after_forward=true",
                              "distributed.reduce_gradients=microbatch"};
  const Overrides on_gpus = {"run.device=cuda", "train.dtype=bf16", "model.head_dim=64"};
  for (const Overrides& open :
       {Overrides{"distributed.pp_schedule=auto"}, Overrides{"distributed.pp_schedule=search"},
        with(streamed, {"distributed.pp_schedule=search"}),
        Overrides{"distributed.pp_split=cost", "distributed.pp_schedule=zbv"},
        Overrides{"distributed.pp_head=spread", "distributed.pp_schedule=dualpipe_v"},
        with(streamed, {"distributed.pp_head=auto", "distributed.pp_schedule=auto"}),
        Overrides{"distributed.pp_schedule=auto", "train.recompute=auto", "distributed.pp=1"},
        with(on_gpus, {"distributed.pp_split=cost", "distributed.pp_schedule=zbv"}),
        with(on_gpus, {"distributed.pp_head=spread", "distributed.pp_schedule=1f1b"})}) {
    CAPTURE(open);
    const Overrides job = with(base, open);
    const pptrain::app::Plan chosen = loaded(job);
    const pptrain::app::Plan waiting = pptrain::app::parse_plan(
        pptrain::test::small_job_text(), "small.toml", with(job, {"run.dir=run"}), {.awaits_choices = true});
    REQUIRE(waiting.order == pptrain::app::Order::awaited);
    const pptrain::app::Plan taken = with_choices(waiting, choices_of(chosen));
    CHECK(taken.order != pptrain::app::Order::awaited);
    CHECK(identity(taken) == identity(chosen));
    CHECK((taken.schedule.actions == chosen.schedule.actions));
    CHECK((taken.schedule.placement == chosen.schedule.placement));
    CHECK(taken.schedule.blocking_sends == (chosen.job.run.device == pptrain::config::Device::cuda));
    CHECK(taken.layers == chosen.layers);
    CHECK(taken.named == chosen.named);
    CHECK(job_to_save(taken) == job_to_save(chosen));
  }
  CHECK(loaded(base).order != pptrain::app::Order::awaited);
}

TEST_CASE("pp_head = \"auto\" spreads the head where that is faster") {
  using pptrain::config::HeadPlace;
  const Overrides large_head = {"distributed.pp=4",      "train.grad_accum_steps=16",
                                "model.hidden_size=256", "model.num_hidden_layers=8",
                                "model.vocab_size=8192", "distributed.pp_head=auto"};
  const Overrides slow = {"distributed.ranks_per_host=1", "distributed.host_link_gbps=0.02"};
  std::set<HeadPlace> chosen;
  for (const Overrides& more :
       {Overrides{"distributed.pp_schedule=auto"}, with(slow, {"distributed.pp_schedule=auto"}),
        Overrides{"distributed.pp_schedule=zbv"}, with(slow, {"distributed.pp_schedule=zbv"})}) {
    CAPTURE(more);
    const Overrides job = with(large_head, more);
    const auto time_of = [&](const char* head) {
      const pptrain::app::Plan plan = loaded(with(job, {std::string("distributed.pp_head=") + head}));
      return pptrain::app::predict(plan, pptrain::app::make_cost_source(plan, "")).step_time;
    };
    const bool pays = time_of("spread") < .99 * time_of("last");
    const pptrain::app::Plan plan = loaded(job);
    CHECK(plan.job.distributed.pp_head == (pays ? HeadPlace::spread : HeadPlace::last));
    CHECK(plan.schedule.spread_head == pays);
    chosen.insert(plan.job.distributed.pp_head);
  }
  CHECK(chosen.size() == 2);
}

TEST_CASE("a searched order takes a spread head, and is no slower than the named ones with it") {
  for (const char* memory : {"0", "0.1"}) {
    CAPTURE(memory);
    const pptrain::app::Plan plan =
        loaded({"distributed.pp=4", "train.grad_accum_steps=16", "model.hidden_size=256",
                "model.num_hidden_layers=8", "model.vocab_size=8192", "distributed.pp_head=spread",
                "distributed.pp_costs=h100", "distributed.pp_schedule=search",
                std::string("distributed.pp_memory_gb=") + memory});
    CHECK(plan.order == pptrain::app::Order::searched);
    CHECK(plan.schedule.spread_head);
    const auto predicted = pptrain::app::predict(plan, pptrain::app::make_cost_source(plan, "h100"));
    CHECK(plan.named_ratio >= 1);
    if (plan.job.distributed.pp_memory_gb > 0)
      CHECK(static_cast<double>(predicted.peak_bytes()) <= 1e9 * plan.job.distributed.pp_memory_gb);
  }
}

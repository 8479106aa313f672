// Losses, grad norms and weights must be equal bit for bit on every pipeline layout.
#include <array>
#include <nlohmann/json.hpp>

#include "app/plan/run_files.h"
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"
#include "test/support/covering.h"
#include "test/support/paths.h"

using pptrain::UsageError;
using pptrain::test::all_combinations;
using pptrain::test::Combination;
using pptrain::test::covering_combinations;
using pptrain::test::JobResult;
using pptrain::test::missing_pairs;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::steps_over;
using pptrain::test::take_pairs;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

const std::filesystem::path root = pptrain::test::source_dir();

constexpr double layouts_grad_clip = 0.2;  // Comparison checks that it acts

// Eight layers, so that four ranks can hold two stages each; small enough for thousands of runs.
const Overrides tiny_layout = {"model.hidden_size=16",
                               "model.intermediate_size=24",
                               "model.num_hidden_layers=8",
                               "model.num_attention_heads=2",
                               "model.num_key_value_heads=1",
                               "train.seq_len=8",
                               "train.micro_batch_size=1",
                               "train.steps=2",
                               "eval.interval=0",
                               fmt::format("train.grad_clip={}", layouts_grad_clip)};

struct Layout {
  std::string schedule;
  int pp = 1;
  int stages_per_rank = 0;
  Overrides overrides() const {
    return {"distributed.pp_schedule=" + schedule, fmt::format("distributed.pp={}", pp),
            fmt::format("distributed.pp_stages_per_rank={}", stages_per_rank)};
  }
  // The stages of all ranks; 0 if the schedule does not exist for this number of microbatches.
  int stages(int microbatches) const {
    try {
      return pptrain::schedule::make_schedule({.name = schedule,
                                               .ranks = pp,
                                               .microbatches = microbatches,
                                               .stages_per_rank = stages_per_rank})
          .stages();
    } catch (const UsageError&) {
      return 0;
    }
  }
};

const std::vector<std::string> schedules = pptrain::schedule::training_schedule_names();
constexpr size_t most_ranks = 4;

// Compares jobs on several layouts with the same job on one rank. The one-rank run is made once per job.
class Comparison {
 public:
  void check(const Layout& layout, const Overrides& job) {
    CAPTURE(layout.schedule, layout.pp, layout.stages_per_rank, job);
    const JobResult& reference = reference_of(job);
    const auto run_dir = folder_.path() / "run";
    std::filesystem::remove_all(run_dir);
    check_equal(reference, run_small_job(text_, run_dir, with(job, layout.overrides())));
  }

 private:
  const JobResult& reference_of(const Overrides& job) {
    const auto [known, first] = references_.try_emplace(job);
    if (first) {
      known->second = run_small_job(text_, folder_.path() / "reference", job);
      REQUIRE(steps_over(known->second, layouts_grad_clip) > 0);
      std::filesystem::remove_all(folder_.path() / "reference");
    }
    return known->second;
  }

  std::string text_ = small_job_text();
  TemporaryFolder folder_;
  std::map<Overrides, JobResult> references_;
};

// Checks each layout with each number of microbatches that it accepts.
void check_layouts(const std::vector<Layout>& layouts, const std::vector<int>& microbatches,
                   const Overrides& common) {
  Comparison comparison;
  size_t compared = 0;
  for (const int m : microbatches) {
    for (const Layout& layout : layouts) {
      if (layout.stages(m) == 0) continue;
      comparison.check(layout, with(common, {fmt::format("train.grad_accum_steps={}", m)}));
      ++compared;
    }
  }
  REQUIRE(compared >= layouts.size());
}

std::vector<int> microbatches_up_to_32() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return {1, 4, 8};  // ten times slower, and the same code on every m
#else
  std::vector<int> result;
  for (int m = 1; m <= 32; ++m) result.push_back(m);
  // Around the numbers of ranks and stages, and far above them.
  return pptrain::test::all_wanted() ? result : std::vector{1, 2, 3, 4, 5, 7, 8, 9, 16, 32};
#endif
}

}  // namespace

// Each schedule and number of ranks with its minimum of microbatches, and all pairs of the three.
TEST_CASE("every schedule gives the bits of one rank, for m from 1 to 32", "[schedules]") {
  const std::vector<int> microbatches = microbatches_up_to_32();
  const auto layout_of = [](const Combination& row) {
    return Layout{schedules[row[0]], static_cast<int>(row[1]) + 1};
  };
  const auto legal = all_combinations(
      std::array{schedules.size(), most_ranks, microbatches.size()},
      [&](const Combination& row) { return layout_of(row).stages(microbatches[row[2]]) > 0; });
  std::vector<Combination> rows;
  for (const Combination& row : legal) {
    if (rows.empty() || row[0] != rows.back()[0] || row[1] != rows.back()[1]) rows.push_back(row);
  }
  CHECK(rows.size() == schedules.size() * most_ranks);
  for (const Combination& row : covering_combinations(legal, rows)) rows.push_back(row);
  CHECK(missing_pairs(legal, rows) == 0);
  Comparison comparison;
  for (const Combination& row : rows) {
    const Layout layout = layout_of(row);
    const int m = microbatches[row[2]];
    comparison.check(layout, with(tiny_layout, {fmt::format("train.grad_accum_steps={}", m),
                                                layout.stages(m) <= 4 ? "model.num_hidden_layers=4"
                                                                      : "model.num_hidden_layers=8"}));
  }
}

TEST_CASE("every schedule gives the bits of one rank for every architecture in bfloat16", "[layouts]") {
  const std::vector<Overrides> models = {
      {"model.tie_word_embeddings=true"},
      {"model.arch=qwen3"},
      // Experts among dense layers.
      {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
       "model.moe_intermediate_size=16", "model.mlp_only_layers=[2]", "model.router_aux_loss_coef=0.1",
       "model.router_z_loss_coef=0.01"}};
  const std::vector<int> microbatches = {2, 3, 8};
  const auto layout_of = [](const Combination& row) {
    return Layout{schedules[row[0]], static_cast<int>(row[1]) + 1};
  };
  const auto legal = all_combinations(
      std::array{schedules.size(), most_ranks, models.size(), microbatches.size()},
      [&](const Combination& row) { return layout_of(row).stages(microbatches[row[3]]) > 0; });
  const auto rows = covering_combinations(legal);
  CHECK(missing_pairs(legal, rows) == 0);
  CHECK(rows.size() >= schedules.size() * most_ranks);
  Comparison comparison;
  for (const Combination& row : rows) {
    comparison.check(
        layout_of(row),
        with(tiny_layout, models[row[2]],
             Overrides{"train.dtype=bf16", fmt::format("train.grad_accum_steps={}", microbatches[row[3]])}));
  }
}

TEST_CASE("any number of stages per rank gives the same bits", "[layouts]") {
  check_layouts({{"interleaved_1f1b", 1, 4},
                 {"interleaved_1f1b", 2, 3},
                 {"interleaved_1f1b", 2, 4},
                 {"looped_bfs", 2, 4},
                 {"looped_bfs", 1, 8},
                 {"interleaved_zb", 2, 3},
                 {"interleaved_zb", 4, 1}},
                {2, 4, 5}, tiny_layout);
}

TEST_CASE("gpipe and 1f1b give the bits of one rank at larger sizes, with evaluation", "[layouts]") {
  const std::vector<Layout> layouts = {{"gpipe", 2}, {"gpipe", 3}, {"gpipe", 4}, {"1f1b", 2},
                                       {"1f1b", 3},  {"1f1b", 4},  {"zbv", 2}};
  const std::array dtypes{"fp32", "bf16"};
  const std::array microbatches{4, 7};
  Comparison comparison;
  for (const Combination& row : take_pairs(std::array{layouts.size(), dtypes.size(), microbatches.size()})) {
    comparison.check(layouts[row[0]], {fmt::format("train.dtype={}", dtypes[row[1]]),
                                       fmt::format("train.grad_accum_steps={}", microbatches[row[2]])});
  }
}

TEST_CASE("a schedule from a file gives the same bits", "[layouts]") {
  const std::string text = small_job_text();
  // PyTorch's own lists, with UNSHARD and RESHARD. They do nothing if no parameter group is sharded.
  const std::string with_unshard = "interleaved_1f1b_p2_v2_m4_with_communication";
  for (const auto& [file, pp, m] :
       std::vector<std::tuple<std::string, int, int>>{{"1f1b_p2_m4_with_communication", 2, 4},
                                                      {"interleaved_1f1b_p4_m8", 4, 8},
                                                      {"dualpipe_v_p4_m8", 4, 8},
                                                      {with_unshard, 2, 4}}) {
    const TemporaryFolder folder;
    const Overrides base = with(tiny_layout, {fmt::format("train.grad_accum_steps={}", m)});
    const JobResult reference = run_small_job(text, folder.path() / "reference", base);
    const std::string folder_of = file == with_unshard ? "test/golden/schedules" : "configs/schedules";
    const std::string path = (root / folder_of / (file + ".csv")).string();
    CAPTURE(path);
    check_equal(
        reference,
        run_small_job(text, folder.path() / "run",
                      with(base, {fmt::format("distributed.pp={}", pp), "distributed.pp_schedule=" + path})));
  }
}

TEST_CASE("a searched schedule gives the same bits, and is kept beside the run", "[layouts]") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides base = with(tiny_layout, {"train.grad_accum_steps=4"});
  const Overrides two = with(base, {"distributed.pp=2"});
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  check_equal(reference,
              run_small_job(text, folder.path() / "run", with(two, {"distributed.pp_schedule=search"})));
  const auto job = pptrain::app::read_resolved_job(folder.path() / "run");
  const std::string file = (folder.path() / "run" / "schedule.csv").string();
  CHECK(job.value().distributed.pp_schedule == file);
  check_equal(reference,
              run_small_job(text, folder.path() / "again", with(two, {"distributed.pp_schedule=" + file})));
}

TEST_CASE("data-parallel replicas give equal bits across pp, and nearly those of one replica", "[layouts]") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides base = {"distributed.dp_replicate=2", "train.grad_accum_steps=4"};
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  for (const Layout& layout : std::vector<Layout>{{"1f1b", 2}, {"1f1b", 3}, {"zbv", 2}}) {
    const auto run_dir = folder.path() / (layout.schedule + std::to_string(layout.pp));
    check_equal(reference, run_small_job(text, run_dir, with(base, layout.overrides())));
  }
  const JobResult single =
      run_small_job(text, folder.path() / "single", {"train.grad_accum_steps=4", "train.micro_batch_size=4"});
  REQUIRE(single.metrics.size() == reference.metrics.size());
  for (size_t i = 0; i < single.metrics.size(); ++i) {
    const auto one = nlohmann::json::parse(single.metrics[i]),
               two = nlohmann::json::parse(reference.metrics[i]);
    for (const auto& [key, value] : one.items()) {
      if (value.is_number())
        CHECK(pptrain::test::relative_error(two.at(key).get<double>(), value.get<double>()) <= 1e-4);
    }
  }
}

// Lists of four short documents need no keys of other context-parallel ranks, lists of a long one do. Halves
// of a pair take turns at each exchange.
TEST_CASE("halves of a pair give the bits of one after the other where data ranks have other documents",
          "[layouts]") {
  const TemporaryFolder folder;
  const std::filesystem::path data = folder.path() / "text.txt";
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "abc\n";
  for (int i = 0; i < 500; ++i) lines += "abcdefghijklmno\n";
  pptrain::test::write_file(data, lines);
  const Overrides job = {"data.document_end=10",     "train.micro_batch_size=1",
                         "train.grad_accum_steps=6", "model.num_hidden_layers=8",
                         "distributed.dp_shard=2",   "distributed.cp=2",
                         "distributed.cp_kind=ring", "distributed.ranks_per_host=1"};
  const Overrides experts = {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                             "model.moe_intermediate_size=16", "distributed.ep=4"};
  for (const Overrides& exchanges :
       std::vector<Overrides>{{"distributed.reshard_after_forward=true"},
                              with(experts, {"distributed.reshard_after_forward=false"}),
                              {"distributed.pp=2", "distributed.reduce_gradients=microbatch",
                               "distributed.reshard_after_forward=false"}}) {
    CAPTURE(exchanges);
    const auto run = [&](const std::string& schedule) {
      return run_small_job(small_job_text(data), folder.path() / schedule,
                           with(job, with(exchanges, {"distributed.pp_schedule=" + schedule})));
    };
    const JobResult reference = run("zbv"), pairs = run("dualpipe_v");
    REQUIRE(reference.exit_code == 0);
    CHECK(pairs.exit_code == 0);
    CHECK(pairs.metrics == reference.metrics);
    CHECK(pairs.checksums == reference.checksums);
    std::filesystem::remove_all(folder.path() / "zbv");
    std::filesystem::remove_all(folder.path() / "dualpipe_v");
  }
}

TEST_CASE("recomputing activations gives the same bits on every layout", "[layouts]") {
  const std::array archs{"llama", "qwen3"};
  const std::array recomputes{"cheap", "selective", "full"};
  const std::vector<Layout> layouts = {
      {"1f1b", 1}, {"1f1b", 2}, {"zb_h1", 3}, {"zbv", 2}, {"interleaved_zb", 2}};
  const auto rows = take_pairs(std::array{archs.size(), recomputes.size(), layouts.size()});
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  for (size_t i = 0; i < archs.size(); ++i) {
    const Overrides base = {"train.grad_accum_steps=4", "train.dtype=bf16",
                            fmt::format("model.arch={}", archs[i])};
    const auto run = [&](const Overrides& overrides) {
      return run_small_job(text, folder.path() / "run", with(base, overrides));
    };
    const JobResult reference = run({});
    for (const Combination& row : rows) {
      if (row[0] != i) continue;
      const Layout& layout = layouts[row[2]];
      CAPTURE(archs[i], recomputes[row[1]], layout.schedule, layout.pp);
      check_equal(reference,
                  run(with(layout.overrides(), {fmt::format("train.recompute={}", recomputes[row[1]])})));
    }
    check_equal(reference, run({"distributed.pp=2", "distributed.pp_schedule=zbv",
                                R"(train.recompute=["full", "none", "cheap", "selective"])"}));
    // Some microbatches of a stage recompute more than others.
    const std::string levels = "full:1/none:2/selective:1", others = "none:1/cheap:1";
    for (const Layout& layout : std::vector<Layout>{{"1f1b", 1}, {"1f1b", 2}, {"zbv", 2}, {"zb_h1", 3}})
      check_equal(reference, run(with(layout.overrides(), {"train.recompute=" + levels})));
    check_equal(reference, run({"distributed.pp=2", "distributed.pp_schedule=zbv",
                                fmt::format("train.recompute={},{},full,{}", levels, others, levels)}));
  }
}

TEST_CASE("uneven splits give the same bits", "[layouts]") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides base = {"train.grad_accum_steps=4"};
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  int run = 0;
  for (const Overrides& layout :
       std::vector<Overrides>{{"distributed.pp_split=[1,3]"},
                              {"distributed.pp_split=*|1"},
                              {"distributed.pp_schedule=interleaved_1f1b", "distributed.pp_split=1|1|1|1"}}) {
    check_equal(reference, run_small_job(text, folder.path() / std::to_string(run++),
                                         with(base, layout, Overrides{"distributed.pp=2"})));
  }
}

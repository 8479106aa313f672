// Losses, grad norms and weights must be equal bit for bit whatever the pipeline layout.
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::UsageError;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

const std::filesystem::path root = PPTRAIN_SOURCE_DIR;

// Eight layers, so that four ranks can hold two stages each; small enough for thousands of runs. Clipping is
// active.
const Overrides tiny = {"model.hidden_size=16",
                        "model.intermediate_size=24",
                        "model.num_hidden_layers=8",
                        "model.num_attention_heads=2",
                        "model.num_key_value_heads=1",
                        "train.seq_len=8",
                        "train.micro_batch_size=1",
                        "train.steps=2",
                        "eval.interval=0",
                        "train.grad_clip=0.2"};

void check_equal(const JobResult& reference, const JobResult& other) {
  REQUIRE(other.exit_code == 0);
  REQUIRE(reference.metrics.size() >= 2);
  REQUIRE(reference.checksums.size() > 30);
  CHECK(other.metrics == reference.metrics);
  CHECK(other.checksums == reference.checksums);
}

struct Layout {
  std::string schedule;
  int pp = 1;
  int stages_per_rank = 0;
  Overrides overrides() const {
    return {"distributed.pp_schedule=" + schedule, fmt::format("distributed.pp={}", pp),
            fmt::format("distributed.pp_stages_per_rank={}", stages_per_rank)};
  }
  bool exists(int microbatches) const {
    try {
      pptrain::schedule::make_schedule(
          {.name = schedule, .ranks = pp, .microbatches = microbatches, .stages_per_rank = stages_per_rank});
      return true;
    } catch (const UsageError&) {
      return false;
    }
  }
};

std::vector<Layout> every_schedule() {
  std::vector<Layout> layouts;
  for (const std::string& schedule : pptrain::schedule::training_schedule_names()) {
    for (const int pp : {1, 2, 3, 4}) layouts.push_back({schedule, pp, 0});
  }
  return layouts;
}

// Each layout against one rank, which runs the same microbatches in turn.
void check_layouts(const std::vector<Layout>& layouts, const std::vector<int>& microbatches,
                   const Overrides& common) {
  const std::string text = small_job_text();
  size_t compared = 0;
  for (const int m : microbatches) {
    const TemporaryFolder folder;
    const Overrides base = with(common, {fmt::format("train.grad_accum_steps={}", m)});
    const JobResult reference = run_small_job(text, folder.path() / "reference", base);
    for (const Layout& layout : layouts) {
      if (!layout.exists(m)) continue;
      CAPTURE(m, layout.schedule, layout.pp, layout.stages_per_rank);
      const auto run_dir = folder.path() / fmt::format("{}_{}", layout.schedule, layout.pp);
      std::filesystem::remove_all(run_dir);
      check_equal(reference, run_small_job(text, run_dir, with(base, layout.overrides())));
      ++compared;
    }
  }
  REQUIRE(compared >= layouts.size());
}

}  // namespace

TEST_CASE("every schedule gives the bits of one rank, for m from 1 to 32", "[schedules]") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  const std::vector<int> microbatches = {1, 4, 8};  // ten times slower, and the same code on every m
#else
  std::vector<int> microbatches;
  for (int m = 1; m <= 32; ++m) microbatches.push_back(m);
#endif
  std::vector<Layout> shallow, deep;  // by the stages that their layers must fill
  for (const Layout& layout : every_schedule()) {
    const int m = 2 * layout.pp;  // which every schedule takes
    const int stages =
        pptrain::schedule::make_schedule(
            {.name = layout.schedule, .ranks = layout.pp, .microbatches = m, .stages_per_rank = 0})
            .stages();
    (stages <= 4 ? shallow : deep).push_back(layout);
  }
  check_layouts(shallow, microbatches, with(tiny, {"model.num_hidden_layers=4"}));
  check_layouts(deep, microbatches, tiny);
}

TEST_CASE("every schedule gives the bits of one rank in bfloat16 with tied embeddings", "[layouts]") {
  check_layouts(every_schedule(), {3, 8}, with(tiny, {"train.dtype=bf16", "model.tie_word_embeddings=true"}));
}

TEST_CASE("every schedule gives the bits of one rank for qwen3", "[layouts]") {
  check_layouts(every_schedule(), {2, 8}, with(tiny, {"model.arch=qwen3", "train.dtype=bf16"}));
}

TEST_CASE("every schedule gives the bits of one rank for experts among dense layers", "[layouts]") {
  check_layouts(every_schedule(), {2, 8},
                with(tiny, {"model.arch=qwen3_moe", "train.dtype=bf16", "model.num_experts=4",
                            "model.num_experts_per_tok=2", "model.moe_intermediate_size=16",
                            "model.mlp_only_layers=[2]", "model.router_aux_loss_coef=0.1",
                            "model.router_z_loss_coef=0.01"}));
}

TEST_CASE("any number of stages per rank gives the same bits", "[layouts]") {
  check_layouts({{"interleaved_1f1b", 1, 4},
                 {"interleaved_1f1b", 2, 3},
                 {"interleaved_1f1b", 2, 4},
                 {"looped_bfs", 2, 4},
                 {"looped_bfs", 1, 8},
                 {"interleaved_zb", 2, 3},
                 {"interleaved_zb", 4, 1}},
                {2, 4, 5}, tiny);
}

TEST_CASE("gpipe and 1f1b give the bits of one rank at larger sizes, with evaluation", "[layouts]") {
  for (const std::string dtype : {"fp32", "bf16"}) {
    check_layouts(
        {{"gpipe", 2}, {"gpipe", 3}, {"gpipe", 4}, {"1f1b", 2}, {"1f1b", 3}, {"1f1b", 4}, {"zbv", 2}}, {4, 7},
        {"train.dtype=" + dtype});
  }
}

TEST_CASE("a schedule from a file gives the same bits", "[layouts]") {
  const std::string text = small_job_text();
  // PyTorch's own, with UNSHARD and RESHARD, which are nothing to do where no parameter group is divided.
  const std::string with_unshard = "interleaved_1f1b_p2_v2_m4_with_communication";
  for (const auto& [file, pp, m] :
       std::vector<std::tuple<std::string, int, int>>{{"1f1b_p2_m4_with_communication", 2, 4},
                                                      {"interleaved_1f1b_p4_m8", 4, 8},
                                                      {"dualpipe_v_p4_m8", 4, 8},
                                                      {with_unshard, 2, 4}}) {
    const TemporaryFolder folder;
    const Overrides base = with(tiny, {fmt::format("train.grad_accum_steps={}", m)});
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
      if (value.is_number()) CHECK(two.at(key).get<double>() == Approx(value.get<double>()).epsilon(1e-4));
    }
  }
}

TEST_CASE("recomputing activations gives the same bits on every layout", "[layouts]") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  for (const std::string arch : {"llama", "qwen3"}) {
    const Overrides base = {"train.grad_accum_steps=4", "train.dtype=bf16", "model.arch=" + arch};
    const JobResult reference = run_small_job(text, folder.path() / (arch + "_reference"), base);
    for (const std::string recompute : {"cheap", "selective", "full"}) {
      for (const Layout& layout :
           std::vector<Layout>{{"1f1b", 1}, {"1f1b", 2}, {"zb_h1", 3}, {"zbv", 2}, {"interleaved_zb", 2}}) {
        CAPTURE(arch, recompute, layout.schedule, layout.pp);
        const auto run_dir =
            folder.path() / fmt::format("{}_{}_{}_{}", arch, recompute, layout.schedule, layout.pp);
        check_equal(reference,
                    run_small_job(text, run_dir,
                                  with(base, layout.overrides(), Overrides{"train.recompute=" + recompute})));
      }
    }
    const Overrides each = {"distributed.pp=2", "distributed.pp_schedule=zbv",
                            R"(train.recompute=["full", "none", "cheap", "selective"])"};
    check_equal(reference, run_small_job(text, folder.path() / (arch + "_each"), with(base, each)));
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

// Packed documents and microbatches of unequal lengths, trained: the same bits on every pipeline and
// schedule, after a resume in the middle of an epoch, and nearly the same on other meshes.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "app/forecast/stage_choices.h"
#include "core/base/error.h"
#include "test/app/close_runs.h"
#include "test/app/small_job.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"

using namespace pptrain;
using pptrain::test::contains_text;
using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_plan;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::small_plan;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

using Json = nlohmann::json;

namespace {

// Lines with long-tailed lengths: most are short, some are longer than a row.
std::filesystem::path write_corpus(const std::filesystem::path& folder) {
  std::mt19937 random(4);
  std::lognormal_distribution<double> length(2.3, 1.1);
  std::ofstream file(folder / "corpus.txt");
  for (int line = 0; line < 400; ++line) {
    for (int i = static_cast<int>(length(random)); i > 0; --i) file << static_cast<char>('a' + random() % 26);
    file << '\n';
  }
  return folder / "corpus.txt";
}

const Overrides documents_job = {
    "data.document_end=10",     "train.seq_len=32",          "train.micro_batch_size=1", "train.steps=4",
    "train.grad_accum_steps=4", "model.num_hidden_layers=8", "eval.interval=2",          "eval.batches=0"};

struct Mode {
  std::string packing, lengths;
  Overrides overrides() const {
    Overrides all = {"data.packing=" + packing, "data.lengths=" + lengths};
    if (lengths == "padded") all.push_back("data.pad_to_multiple_of=8");
    return all;
  }
};
const std::vector<Mode> modes = {{"sequential", "exact"}, {"best_fit", "exact"},    {"none", "exact"},
                                 {"best_fit", "padded"},  {"sequential", "padded"}, {"best_fit", "fixed"},
                                 {"none", "fixed"}};

const Overrides experts = {"model.arch=qwen3_moe",         "model.num_experts=4",
                           "model.num_experts_per_tok=2",  "model.moe_intermediate_size=16",
                           "model.mlp_only_layers=[2]",    "model.router_aux_loss_coef=0.1",
                           "model.router_z_loss_coef=0.01"};

std::vector<Json> steps_in(const std::filesystem::path& run_dir) {
  std::vector<Json> steps;
  std::ifstream lines(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    Json record = Json::parse(line);
    if (record.contains("grad_norm")) steps.push_back(std::move(record));
  }
  return steps;
}

}  // namespace

TEST_CASE("documents of any packing and lengths give the bits of one rank on every pipeline") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const std::vector<Overrides> layouts = {
      {"distributed.pp=2", "distributed.pp_schedule=1f1b"},
      {"distributed.pp=4", "distributed.pp_schedule=gpipe", "train.recompute=full"},
      {"distributed.pp=2", "distributed.pp_schedule=zbv", "train.recompute=selective:1/none:1"},
      {"distributed.pp=3", "distributed.pp_schedule=zb_h1", "train.recompute=cheap"},
      {"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b"},
      {"distributed.pp=2", "distributed.pp_schedule=dualpipe_v"},
      {"distributed.pp=2", "distributed.pp_schedule=zb_h2", "optimizer.post_validation=true"}};
  for (const Mode& mode : modes) {
    const Overrides common = with(documents_job, mode.overrides());
    const JobResult reference = run_small_job(text, folder.path() / "reference", common);
    for (const Overrides& layout : layouts) {
      CAPTURE(mode.packing, mode.lengths, layout);
      check_equal(reference, run_small_job(text, folder.path() / "run", with(common, layout)));
    }
  }
}

TEST_CASE("steps that choose what their microbatches recompute give the same bits") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  for (const std::string lengths : {"exact", "padded"}) {
    const Overrides job = with(documents_job, {"data.packing=best_fit", "data.lengths=" + lengths});
    const JobResult reference = run_small_job(text, folder.path() / "reference", job);
    for (const std::string schedule : {"1f1b", "zbv"}) {
      const auto plan_with = [&](const std::string& recompute) {
        return small_plan(text, folder.path() / "run",
                          with(job, {"distributed.pp=2", "distributed.pp_schedule=" + schedule,
                                     "train.recompute=" + recompute}));
      };
      const auto bytes = [&](const app::Plan& plan) {
        return app::predict(plan, app::make_cost_source(plan, "")).bytes[0].total();
      };
      app::Plan plan = plan_with("full");
      const int64_t least = bytes(plan), most = bytes(plan_with("none"));
      plan.recompute_memory = static_cast<double>(least + (most - least) / 4);
      const app::StepRecompute chosen = app::step_recompute(plan, 0);
      REQUIRE((chosen(std::vector<int64_t>(4, 32)) != chosen(std::vector<int64_t>{8, 32, 2, 32})));
      CAPTURE(lengths, schedule);
      check_equal(reference, run_plan(plan));
    }
  }
}

TEST_CASE("documents on other meshes give nearly the numbers of one rank, over the same tokens", "[meshes]") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const std::vector<Overrides> meshes = {
      {"distributed.dp_shard=2", "train.micro_batch_size=1", "distributed.reshard_after_forward=true"},
      {"distributed.dp_replicate=2", "train.micro_batch_size=1", "distributed.pp=2",
       "distributed.pp_schedule=zbv"},
      {"distributed.tp=2", "distributed.pp=2"},
      {"distributed.cp=2", "distributed.cp_kind=ring"},
      {"distributed.cp=2", "distributed.cp_kind=ulysses", "distributed.tp=2"},
      {"distributed.cp=2", "distributed.dp_shard=2", "train.micro_batch_size=1", "distributed.pp=2"}};
  size_t turn = 0;  // every other mesh of a mode is of a model with experts
  for (const Mode& mode : modes) {
    const Overrides common =
        with(documents_job, mode.overrides(), Overrides{"train.micro_batch_size=2", "optimizer.lr=1e-3"});
    const bool has_sparse = mode.packing != "sequential";
    std::array<std::vector<Json>, 2> references;
    for (const bool sparse : {false, true}) {
      if (sparse && !has_sparse) continue;
      const auto run_dir = folder.path() / "reference";
      REQUIRE(run_small_job(text, run_dir, with(common, sparse ? experts : Overrides{})).exit_code == 0);
      references[sparse] = steps_in(run_dir);
    }
    for (Overrides mesh : meshes) {
      const bool shards_experts = mesh.front() != "distributed.dp_replicate=2";
      const bool sparse = turn++ % 2 == 1 && has_sparse && shards_experts;
      if (sparse) mesh.push_back("distributed.ep=2");
      CAPTURE(mode.packing, mode.lengths, sparse, mesh);
      const auto run_dir = folder.path() / "run";
      REQUIRE(run_small_job(text, run_dir, with(common, sparse ? experts : Overrides{}, mesh)).exit_code ==
              0);
      const std::vector<Json> steps = steps_in(run_dir), &reference = references[sparse];
      REQUIRE(steps.size() == reference.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        CHECK(steps[i].at("tokens") == reference[i].at("tokens"));
        CHECK(steps[i].at("epoch") == reference[i].at("epoch"));
        const auto difference = [&](const char* key, test::CallSite place = test::CallSite::current()) {
          return test::relative_error(steps[i].at(key).get<double>(), reference[i].at(key).get<double>(),
                                      place);
        };
        CHECK(difference("loss") <= (i == 0 ? 1e-6 : 2e-5));
        if (i == 0) CHECK(difference("grad_norm") <= 1e-5);
      }
    }
    ++turn;  // the next mode's others are sparse
  }
}

// Each document has the frequencies of its own length, whichever ranks and slices have its tokens.
TEST_CASE(
    "documents within and beyond the length of LongRoPE and of dynamic RoPE train alike on every layout") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const std::vector<Overrides> same_bits = {
      {"distributed.pp=2", "distributed.pp_schedule=zbv", "train.recompute=full"}, {"distributed.pp=4"}};
  const std::vector<Overrides> meshes = {{"distributed.tp=2", "distributed.pp=2"},
                                         {"distributed.cp=2", "distributed.cp_kind=ring"},
                                         {"distributed.cp=2", "distributed.cp_kind=ulysses"},
                                         {"distributed.pp=2", "distributed.pp_sequence_slices=2"}};
  for (const Overrides& variant : {test::longrope_up_to(12), test::dynamic_rope(12)}) {
    const bool is_first = variant == test::longrope_up_to(12);
    for (const Mode& mode : {Mode{"best_fit", "exact"}, Mode{"none", "fixed"}, Mode{"none", "padded"}}) {
      if (!is_first && mode.lengths == "fixed") continue;  // the other two have rows of several lengths too
      const Overrides common = with(documents_job, variant, mode.overrides(),
                                    Overrides{"train.micro_batch_size=2", "optimizer.lr=1e-3"});
      const auto run_dir = folder.path() / "reference";
      const JobResult reference = run_small_job(text, run_dir, common);
      const std::vector<Json> expected = steps_in(run_dir);
      CAPTURE(variant, mode.packing, mode.lengths);
      for (const Overrides& layout : same_bits)
        check_equal(reference, run_small_job(text, folder.path() / "run", with(common, layout)));
      for (const Overrides& mesh : meshes) {
        CAPTURE(mesh);
        REQUIRE(run_small_job(text, folder.path() / "run", with(common, mesh)).exit_code == 0);
        const std::vector<Json> steps = steps_in(folder.path() / "run");
        for (const char* key : {"loss", "grad_norm"}) {
          const double value = expected.at(0).at(key).get<double>();
          CHECK(steps.at(0).at(key).get<double>() == Approx(value).epsilon(1e-5));
        }
      }
    }
  }
}

TEST_CASE("a run on documents resumes in the middle of an epoch, also on another layout, bit for bit") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  for (const Mode& mode : modes) {
    const Overrides common =
        with(documents_job, mode.overrides(), Overrides{"train.steps=9", "lr_schedule.name=constant"});
    const JobResult whole = run_small_job(text, folder.path() / "whole", common);
    const auto run_dir = folder.path() / "resumed";
    std::filesystem::remove_all(run_dir);
    const std::vector<std::pair<int, Overrides>> starts = {
        {2, {"distributed.pp=2"}},
        {5, {"distributed.pp=2", "distributed.pp_schedule=zbv"}},
        {9, {"distributed.pp=4", "distributed.pp_schedule=zb_h1"}}};
    JobResult resumed;
    for (const auto& [last, layout] : starts) {
      resumed = run_small_job(
          text, run_dir,
          with(common, layout, Overrides{fmt::format("train.steps={}", last), "checkpoint.resume=auto"}));
      REQUIRE(resumed.exit_code == 0);
    }
    CAPTURE(mode.packing, mode.lengths);
    const std::vector<Json> a = steps_in(folder.path() / "whole"), b = steps_in(run_dir);
    REQUIRE(a.size() == 9);
    REQUIRE(b.size() == 9);
    for (size_t i = 0; i < 9; ++i) {
      for (const char* key : {"loss", "grad_norm", "tokens", "computed_tokens", "padding_tokens", "epoch"})
        CHECK(a[i].at(key) == b[i].at(key));
    }
    CHECK(resumed.checksums == whole.checksums);
  }
}

namespace {

// Tokens without padding. A list shorter than its ranks need is padded.
int64_t own_tokens(const Json& step) {
  return step.at("computed_tokens").get<int64_t>() - step.at("padding_tokens").get<int64_t>();
}

}  // namespace

TEST_CASE("steps balanced by the schedule hold the same tokens, give nearly the same numbers, and resume") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const std::vector<Overrides> meshes = {
      {"distributed.pp=4"},
      {"distributed.pp=2", "distributed.dp_replicate=2", "distributed.pp_schedule=zbv"},
      {"distributed.pp=2", "distributed.dp_shard=2", "distributed.reshard_after_forward=true"},
      {"distributed.tp=2", "distributed.cp=2"}};
  for (const Mode& mode : {Mode{"none", "exact"}, Mode{"best_fit", "exact"}}) {
    for (const Overrides& mesh : meshes) {
      const Overrides common = with(documents_job, mode.overrides(), mesh,
                                    Overrides{"optimizer.lr=1e-3", "lr_schedule.name=constant"});
      const Overrides balanced = with(common, {"data.balance=schedule"});
      const auto run_dir = folder.path() / "run";
      REQUIRE(run_small_job(text, run_dir, common).exit_code == 0);
      const std::vector<Json> expected = steps_in(run_dir);
      const JobResult whole = run_small_job(text, run_dir, balanced);
      const std::vector<Json> steps = steps_in(run_dir);
      CAPTURE(mode.packing, mesh);
      REQUIRE(whole.exit_code == 0);
      REQUIRE(steps.size() == expected.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        for (const char* key : {"tokens", "epoch"}) CHECK(steps[i].at(key) == expected[i].at(key));
        CHECK(own_tokens(steps[i]) == own_tokens(expected[i]));
        CHECK(test::relative_error(steps[i].at("loss").get<double>(), expected[i].at("loss").get<double>()) <=
              2e-5);
      }
      const auto resumed = folder.path() / "resumed";
      std::filesystem::remove_all(resumed);
      run_small_job(text, resumed, with(balanced, {"train.steps=2", "checkpoint.resume=auto"}));
      check_equal(whole, run_small_job(text, resumed, with(balanced, {"checkpoint.resume=auto"})));
    }
  }
}

TEST_CASE("what padding costs is in the metrics, and exact lengths have none") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const auto sums = [&](const Mode& mode) {
    REQUIRE(run_small_job(text, folder.path() / "run",
                          with(documents_job, mode.overrides(), Overrides{"distributed.dp_replicate=2"}))
                .exit_code == 0);
    int64_t computed = 0, padding = 0, tokens = 0;
    for (const Json& step : steps_in(folder.path() / "run")) {
      computed += step.at("computed_tokens").get<int64_t>();
      padding += step.at("padding_tokens").get<int64_t>();
      tokens += step.at("tokens").get<int64_t>();
    }
    CHECK(tokens <= computed - padding);
    return std::array{computed, padding, tokens};
  };
  for (const std::string packing : {"none", "sequential", "best_fit"}) {
    const auto exact = sums({packing, "exact"}), padded = sums({packing, "padded"});
    CAPTURE(packing);
    CHECK(exact[1] == 0);
    CHECK(padded[1] > 0);
    CHECK(padded[0] == exact[0] + padded[1]);
    CHECK(padded[2] == exact[2]);
  }
  const auto none = sums({"none", "fixed"}), best_fit = sums({"best_fit", "fixed"}),
             rows = sums({"sequential", "fixed"});
  CHECK(none[0] == best_fit[0]);
  CHECK(none[1] > 2 * best_fit[1]);
  CHECK(rows[1] == 0);
}

// One microbatch a step, so that it has the same documents for every value of lengths.
TEST_CASE("padding changes neither the balance of experts nor what is said of their loads") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const auto steps = [&](const std::string& lengths) {
    REQUIRE(run_small_job(text, folder.path() / "run",
                          with(documents_job, Mode{"none", lengths}.overrides(), experts,
                               Overrides{"train.micro_batch_size=8", "train.grad_accum_steps=1",
                                         "model.router_bias_update_rate=0.01", "optimizer.lr=1e-3"}))
                .exit_code == 0);
    return steps_in(folder.path() / "run");
  };
  const std::vector<Json> exact = steps("exact");
  for (const std::string lengths : {"fixed", "padded"}) {
    CAPTURE(lengths);
    const std::vector<Json> padded = steps(lengths);
    REQUIRE(padded.size() == 4);
    int64_t padding = 0;
    for (size_t i = 0; i < padded.size(); ++i) {
      padding += padded[i].at("padding_tokens").get<int64_t>();
      CHECK(padded[i].at("expert_load") == exact[i].at("expert_load"));
      CHECK(padded[i].at("expert_imbalance") == exact[i].at("expert_imbalance"));
      CHECK(test::relative_error(padded[i].at("grad_norm").get<double>(),
                                 exact[i].at("grad_norm").get<double>()) < 1e-5);
    }
    CHECK(padding > 0);
  }
}

TEST_CASE("packing and lengths act only where documents are known, and decide the data") {
  const TemporaryFolder folder;
  const std::string text = small_job_text(write_corpus(folder.path()));
  const auto plan = [&](const Overrides& overrides) {
    return test::small_plan(text, folder.path() / "run", overrides);
  };
  CHECK_THROWS_WITH(plan({"data.packing=best_fit"}),
                    contains_text("data.packing") && contains_text("document_end"));
  CHECK_THROWS_WITH(plan({"data.lengths=exact"}),
                    contains_text("data.lengths") && contains_text("document_end"));
  CHECK_THROWS_WITH(plan({"data.document_end=10", "data.pad_to_multiple_of=64"}),
                    contains_text("pad_to_multiple_of") && contains_text("data.lengths"));
  CHECK_THROWS_WITH(plan({"data.document_end=10", "data.lengths=padded", "data.balance=schedule"}),
                    contains_text("data.balance") && contains_text("data.lengths"));
  CHECK_THROWS_WITH(plan({"data.document_end=10", "data.format=megatron"}),
                    contains_text("data.document_end"));
  // Other settings than the checkpoint's.
  run_small_job(text, folder.path() / "run", with(documents_job, Overrides{"train.steps=1"}));
  for (const auto& [key, value] : {std::pair("packing", "best_fit"), std::pair("lengths", "exact")}) {
    CHECK_THROWS_WITH(run_small_job(text, folder.path() / "run",
                                    with(documents_job, Overrides{fmt::format("data.{}={}", key, value),
                                                                  "checkpoint.resume=auto"})),
                      contains_text(fmt::format("data.{} was", key)) && contains_text("checkpoint.data"));
  }
}

TEST_CASE("a step without a valid token leaves weights and moments as they are, and says so") {
  const TemporaryFolder folder;
  const auto corpus = folder.path() / "corpus.txt";
  // In a document of one token nothing is predicted.
  std::ofstream(corpus) << "the first of them\nand the second one\n\na fourth that counts\n";
  const Overrides one_a_step = {
      "data.document_end=10",      "data.packing=none",         "data.lengths=exact",
      "data.shuffle=false",        "data.val_fraction=0",       "train.micro_batch_size=1",
      "train.seq_len=32",          "eval.interval=0",           "train.max_skipped_steps=0",
      "lr_schedule.name=constant", "lr_schedule.warmup_steps=0"};
  const bool post_validation = GENERATE(false, true);
  const auto run = [&](int steps) {
    return run_small_job(small_job_text(corpus), folder.path() / "run",
                         with(one_a_step, {fmt::format("train.steps={}", steps), "distributed.pp=2",
                                           "distributed.pp_schedule=gpipe",
                                           fmt::format("optimizer.post_validation={}", post_validation)}));
  };
  const JobResult two = run(2), three = run(3);
  REQUIRE(two.checksums.size() > 30);
  CHECK(three.checksums == two.checksums);
  run(4);
  const std::vector<Json> steps = steps_in(folder.path() / "run");
  REQUIRE(steps.size() == 4);
  for (const Json& step : steps) {
    const bool empty = step.at("step") == 3;
    CAPTURE(step.dump());
    CHECK(step.at("skipped") == empty);
    CHECK(step.at("loss").is_null() == empty);
    CHECK((step.at("tokens") == 0) == empty);
    CHECK(step.at("skipped_steps") == (step.at("step") >= 3 ? 1 : 0));
  }
}

TEST_CASE("a step without a token to predict has no loss and no gradient, and the next ones go on") {
  const TemporaryFolder folder;
  std::ofstream corpus(folder.path() / "corpus.txt");
  for (int document = 0; document < 100; ++document) corpus << (document % 2 == 0 ? "\n" : "To be, or not\n");
  corpus.close();
  const JobResult run = run_small_job(small_job_text(folder.path() / "corpus.txt"), folder.path() / "run",
                                      with(documents_job, {"data.packing=none", "train.grad_accum_steps=1",
                                                           "train.steps=8", "eval.interval=0"}));
  REQUIRE(run.exit_code == 0);
  int empty = 0, full = 0;
  for (const Json& step : steps_in(folder.path() / "run")) {
    CAPTURE(step.dump());
    ++(step.at("tokens") == 0 ? empty : full);
    CHECK(step.at("loss").is_number() == (step.at("tokens") > 0));
    CHECK((step.at("grad_norm") == 0) == (step.at("tokens") == 0));
  }
  CHECK(empty > 0);
  CHECK(full > 0);
}

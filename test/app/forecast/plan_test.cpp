// Predictions of a step, the search over them, and the jobs that auto and cost make.
#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/fmt/ranges.h>

#include "app/forecast/costs.h"
#include "app/forecast/plan_report.h"
#include "app/forecast/prediction.h"
#include "app/forecast/search.h"
#include "app/forecast/search_report.h"
#include "app/forecast/stage_choices.h"
#include "app/forecast/step_costs.h"
#include "app/trace/trace_file.h"
#include "core/base/error.h"
#include "models/flops.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/render/text_layout.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using app::CostSource;

namespace {

// Checks that no line is longer than `width`.
void check_width(const std::string& text, size_t width) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    INFO(line);
    CHECK(line.size() <= width);
    begin = end + 1;
  }
}

app::Plan plan_with(const Overrides& overrides) {
  return small_plan(small_job_text(), "run", overrides);
}

// The job of scripts/bench.
std::vector<std::string> bench_sizes() {
  return {"model.hidden_size=512",
          "model.intermediate_size=1408",
          "model.num_hidden_layers=8",
          "model.num_attention_heads=8",
          "model.num_key_value_heads=8",
          "model.head_dim=64",
          "model.vocab_size=32000",
          "train.seq_len=512",
          "train.micro_batch_size=1",
          "train.grad_accum_steps=8",
          "train.dtype=bf16",
          "distributed.pp=2"};
}

}  // namespace

TEST_CASE("the parts of a predicted step add up") {
  for (const std::string schedule : {"gpipe", "1f1b", "zbv", "interleaved_1f1b", "zb_h2", "dualpipe_v"}) {
    const app::Plan plan = plan_with(with(bench_sizes(), {"distributed.pp_schedule=" + schedule}));
    const app::Prediction p = app::predict(plan, app::make_cost_source(plan, "cpu"));
    REQUIRE(p.barrier.size() == 2);
    int64_t parameters = 0;
    for (int rank = 0; rank < 2; ++rank) {
      const schedule::RankTime& time = p.pipeline.ranks[rank];
      CHECK(time.busy + time.idle() + p.barrier[rank] + p.optimizer_time[rank] == Approx(p.step_time));
      CHECK(p.bytes[rank].activations > 0);
      CHECK(p.bytes[rank].optimizer == 2 * p.bytes[rank].gradients);
      parameters += p.bytes[rank].gradients / 4;
    }
    CHECK(parameters == models::parameter_count(plan.model));
    CHECK(p.tokens_per_s == Approx(8 * 512 / p.step_time));
    CHECK(p.bubble() > 0);
    CHECK(p.bubble() < 0.6);
  }
}

TEST_CASE("a plan knows what an overlapped pair hides") {
  const Overrides experts = {"model.arch=qwen3_moe",
                             "model.num_experts=8",
                             "model.num_experts_per_tok=2",
                             "model.moe_intermediate_size=512",
                             "distributed.pp=1",
                             "distributed.pp_schedule=dualpipe_v",
                             "distributed.dp_shard=2",
                             "distributed.ep=2"};
  const auto pairs = [](const app::Plan& plan) {
    return std::ranges::count(plan.schedule.actions[0], schedule::ActionKind::overlapped_pair,
                              &schedule::Action::kind);
  };
  const auto busy = [&](const Overrides& more, bool split) {
    Overrides sizes = bench_sizes();
    std::erase(sizes, "model.intermediate_size=1408");
    app::Plan plan = plan_with(with(sizes, experts, more));
    CHECK(pairs(plan) == (more.empty() ? 0 : 13));  // 2 m - 3
    for (schedule::Schedule* lists : {&plan.schedule, &plan.compute})
      if (split) *lists = schedule::split_pairs(*lists);
    const app::CostSource source = app::make_cost_source(plan, "cpu");
    const app::CostModel costs(plan, source);
    const app::Prediction p = app::predict(plan, costs);
    double waited = 0;
    for (const app::ExchangeTime& time : app::exchange_times(plan, costs, p))
      if (std::ranges::find(kernels::wire_names, time.what) != std::end(kernels::wire_names))
        waited += time.exposed;
    CHECK_THAT(app::render_plan(plan, p, costs, source, {.width = 100}),
               contains_text("communication of a step"));
    const schedule::StageCost& first = p.costs.stages[0];
    return std::tuple(p.pipeline.ranks[0].busy, first.wire.forward + first.wire.backward, waited);
  };
  const Overrides far = {"distributed.ranks_per_host=1", "distributed.host_link_gbps=10"};
  const auto [apart, wire, waited_apart] = busy(far, true);
  CHECK(wire > 0);
  // GEMMs take longer than a fast link's exchanges, so a pair hides all of them.
  const auto [together, same_wire, waited] = busy(far, false);
  CHECK(together == Approx(apart - 13 * wire).epsilon(1e-6));
  CHECK(waited == Approx(waited_apart - 13 * wire).epsilon(1e-6));
  CHECK(std::get<1>(busy({}, false)) == 0);  // within a host processors copy
  CHECK(pairs(plan_with(with(bench_sizes(),
                             {"distributed.pp_schedule=dualpipe_v", "distributed.ranks_per_host=1"}))) == 0);
}

TEST_CASE("tensor-parallel ranks on one host send others what is the same for them once") {
  const auto forward = [](const char* ranks_per_host) {
    const app::Plan plan = plan_with(
        with(bench_sizes(), {"distributed.tp=4", ranks_per_host, "distributed.host_link_gbps=0.1"}));
    const app::CostSource source = app::make_cost_source(plan, "cpu");
    return app::predict(plan, source).costs.stages[0].time.forward;
  };
  const double alone = forward("distributed.ranks_per_host=4");
  const double apart = forward("distributed.ranks_per_host=1") - alone;
  const double in_pairs = forward("distributed.ranks_per_host=2") - alone;
  CHECK(apart > 0);
  CHECK(in_pairs == Approx(apart / 3).epsilon(0.05));  // a quarter of the bytes instead of three
}

// The rows of docs/speed.md with the fastest attention, in tokens/s: stages of Llama 3 8B of four blocks,
// four blocks, and two blocks with the head, for two sequence lengths, and a model of 1B trained whole.
TEST_CASE("the modelled H100 is within 5 % of what was measured on one") {
  const auto predicted = [](const Overrides& job) {
    const app::Plan plan = plan_with(
        with({"run.device=cuda", "train.dtype=bf16", "train.deterministic=false", "model.vocab_size=128256",
              "model.num_attention_heads=32", "model.num_key_value_heads=8", "model.head_dim=0"},
             job));
    return app::predict(plan, app::make_cost_source(plan, "h100"));
  };
  for (const auto& [sequence, measured] : {std::pair(4096, std::array{103820.0, 104057.0, 104730.0}),
                                           std::pair(8192, std::array{99210.0, 99390.0, 101756.0})}) {
    const app::Prediction p = predicted(
        {"model.hidden_size=4096", "model.intermediate_size=14336", "model.num_hidden_layers=10",
         "distributed.pp=3", "distributed.pp_split=4,4,2", "train.micro_batch_size=1",
         "train.grad_accum_steps=8", "train.recompute=none", fmt::format("train.seq_len={}", sequence)});
    for (size_t stage = 0; stage < measured.size(); ++stage) {
      const auto& time = p.costs.stages.at(stage).time;
      CAPTURE(sequence, stage);
      CHECK(sequence / (time.forward + time.backward) == Approx(measured[stage]).epsilon(0.05));
    }
  }
  const app::Prediction whole =
      predicted({"model.hidden_size=2048", "model.intermediate_size=8192", "model.num_hidden_layers=16",
                 "model.tie_word_embeddings=true", "distributed.pp=1", "train.micro_batch_size=2",
                 "train.grad_accum_steps=8", "train.seq_len=4096"});
  CHECK(2 * 8 * 4096 / whole.step_time == Approx(64121).epsilon(0.05));
}

TEST_CASE("on a GPU the memory of attention's library counts") {
  const Overrides wide = {
      "run.device=cuda",         "model.hidden_size=64",         "model.intermediate_size=64",
      "model.head_dim=64",       "model.num_attention_heads=32", "model.num_key_value_heads=32",
      "train.dtype=bf16",        "train.seq_len=1024",           "train.micro_batch_size=8",
      "train.grad_accum_steps=1"};
  const auto activations = [&](const char* device, const char* deterministic) {
    const app::Plan plan = plan_with(with(wide, {std::string("train.deterministic=") + deterministic}));
    return app::predict(plan, app::make_cost_source(plan, device)).bytes.front().activations;
  };
  // cuDNN: the scores' gradients of 8 documents in bfloat16, or q's gradients in float32.
  CHECK(activations("h100", "true") - activations("h100", "false") ==
        int64_t{8} * 32 * 1024 * 1024 * 2 - int64_t{8192} * 32 * 64 * 4);
  // FlashAttention-2 holds q's gradients in float32, once for 256 heads and 108 multiprocessors.
  CHECK(activations("a100", "true") == activations("a100", "false"));
}

TEST_CASE("a split by cost is never slower than the even one, and gives the head's rank fewer layers") {
  const app::Plan even = plan_with(bench_sizes());
  const app::Plan cost = plan_with(with(bench_sizes(), {"distributed.pp_split=cost"}));
  CHECK(cost.job.distributed.pp_split.layers == std::vector<int64_t>{6, 2});
  const CostSource source = app::make_cost_source(even, "");
  CHECK(app::predict(cost, source).step_time < 0.9 * app::predict(even, source).step_time);
  // No other split of the job is better.
  for (int first = 1; first <= 7; ++first) {
    const app::Plan other =
        plan_with(with(bench_sizes(), {fmt::format("distributed.pp_split=[{},{}]", first, 8 - first)}));
    CHECK(app::predict(other, source).step_time >= app::predict(cost, source).step_time * (1 - 1e-9));
  }
}

TEST_CASE("auto takes the best of the search that fits") {
  const Overrides one_stage = with(bench_sizes(), {"distributed.pp_stages_per_rank=1"});
  const app::Plan plan = plan_with(one_stage);
  const CostSource source = app::make_cost_source(plan, "");
  const auto found = app::search(plan, source, {.order_effort = 10, .order_gain = 0.01});
  REQUIRE(found.size() > 5);  // gpipe, 1f1b, zb_h1, zb_h2, most with two splits, and an order
  for (const app::Candidate& c : found) {
    CHECK(c.fits);
    CHECK(found.front().step_time <= c.step_time);
    CHECK(c.layout.layers.size() == static_cast<size_t>(2 * c.layout.stages_per_rank));
    const app::Prediction p = app::predict(app::make_plan(plan, c.layout, *c.lowered), source);
    CHECK(p.step_time == c.step_time);
    CHECK(p.peak_bytes() == c.bytes.total());
  }
  const app::Plan chosen = plan_with(with(one_stage, {"distributed.pp_schedule=auto"}));
  CHECK(chosen.job.distributed.pp_schedule == found.front().layout.schedule);
  CHECK(chosen.job.distributed.pp_stages_per_rank == found.front().layout.stages_per_rank);
  CHECK(chosen.layers == found.front().layout.layers);

  // With less memory than the fastest needs, another schedule or recompute fits.
  const double gb = static_cast<double>(found.front().bytes.total()) / 1e9;
  const app::Plan smaller = plan_with(with(
      one_stage, {"distributed.pp_schedule=auto", fmt::format("distributed.pp_memory_gb={}", 0.95 * gb)}));
  CHECK(static_cast<double>(app::predict(smaller, source).peak_bytes()) <= 0.95e9 * gb);
  CHECK(app::predict(smaller, source).step_time > 0.99 * found.front().step_time);
  CHECK_THROWS_WITH(
      plan_with(with(bench_sizes(), {"distributed.pp_schedule=auto", "distributed.pp_memory_gb=0.1"})),
      contains_text("no schedule fits into 0.10 GB a rank: the leanest"));
}

namespace {

app::Prediction with_recompute(app::Plan plan, const CostSource& source,
                               const std::vector<std::string>& words) {
  plan.job.train.recompute.words = words;
  return app::predict(plan, source);
}

}  // namespace

TEST_CASE("where memory binds, the rank that is too full recomputes, and as little as it needs") {
  // 1f1b on 4 ranks: rank 0 holds four microbatches, the last one holds one.
  const app::Plan plan =
      plan_with(with(bench_sizes(), Overrides{"distributed.pp=4", "distributed.pp_schedule=1f1b"}));
  const CostSource source = app::make_cost_source(plan, "");
  const app::Prediction none = app::predict(plan, source);
  app::FootprintCache dry_runs(plan.model);
  const std::vector<std::string> expected = {"cheap", "none", "none", "none"};
  const app::Prediction first_alone = with_recompute(plan, source, expected);
  const int64_t budget = first_alone.peak_bytes();
  REQUIRE(budget == first_alone.bytes[0].total());
  REQUIRE(budget < none.peak_bytes());
  const auto words = [&](double bytes) {
    return app::choose_recompute(plan, none, source, bytes, dry_runs).first.job.train.recompute.words;
  };
  const app::Prediction chosen =
      app::choose_recompute(plan, none, source, static_cast<double>(budget), dry_runs).second;
  CHECK(words(static_cast<double>(budget)) == expected);
  CHECK(chosen.peak_bytes() == budget);
  CHECK(chosen.step_time == first_alone.step_time);
  CHECK(chosen.step_time > none.step_time);
  // If nothing fits, every stage recomputes in full, written as one word. A plan that fits does not change.
  CHECK(words(1) == std::vector<std::string>{"full"});
  CHECK(words(1e15) == std::vector<std::string>{"none"});
}

TEST_CASE("microbatches recompute less than their stage where the rank has room, and the step is shorter") {
  const Overrides layout =
      with(bench_sizes(),
           Overrides{"distributed.pp=4", "distributed.pp_stages_per_rank=1", "distributed.pp_split=3,2,2,1"});
  for (const std::string name : {"1f1b", "zb_h1", "gpipe", "slices"}) {
    const Overrides schedule = {name == "slices" ? "distributed.pp_sequence_slices=4"
                                                 : "distributed.pp_schedule=" + name};
    const app::Plan plan = plan_with(with(layout, schedule));
    const CostSource source = app::make_cost_source(plan, "");
    const app::Prediction none = app::predict(plan, source);
    app::FootprintCache dry_runs(plan.model);
    const auto least =
        static_cast<double>(app::choose_recompute(plan, none, source, 1, dry_runs).second.peak_bytes());
    for (const double part : {.3, .6, .9}) {
      const double budget = least + part * (static_cast<double>(none.peak_bytes()) - least);
      const auto [coarse, before] = app::choose_recompute(plan, none, source, budget, dry_runs);
      const auto finest = config::Recompute::none;
      const auto lowered =
          app::lower_microbatches(coarse, before.step_time, finest, source, budget, dry_runs);
      REQUIRE(lowered);
      const auto& [finer, after] = *lowered;
      CAPTURE(name, part, coarse.job.train.recompute.words, finer.job.train.recompute.words);
      REQUIRE(static_cast<double>(before.peak_bytes()) <= budget);
      CHECK(static_cast<double>(after.peak_bytes()) <= budget);
      CHECK(after.step_time < before.step_time);
      CHECK(after.step_time >= none.step_time);
      CHECK(finer.job.train.recompute.by_microbatch());
      // The report and a run read this plan; its words give the same plan in a job.
      const app::Prediction again = app::predict(finer, source);
      CHECK(again.step_time == after.step_time);
      CHECK(again.peak_bytes() == after.peak_bytes());
      const std::string words =
          fmt::format("train.recompute={}", fmt::join(finer.job.train.recompute.words, ","));
      CHECK(app::predict(plan_with(with(with(layout, schedule), {words})), source).step_time ==
            after.step_time);
      // The stages leave no room.
      const auto full = static_cast<double>(before.peak_bytes());
      CHECK(!app::lower_microbatches(coarse, before.step_time, finest, source, full - 1, dry_runs));
    }
  }
}

TEST_CASE("a step of short microbatches recomputes less of them, within the same memory") {
  using config::Recompute;
  using Levels = std::vector<std::vector<Recompute>>;
  const Overrides layout = with(bench_sizes(), {"distributed.pp_schedule=zbv", "distributed.pp_split=even"});
  app::Plan plan = plan_with(with(layout, {"train.recompute=full"}));
  const CostSource source = app::make_cost_source(plan, "");
  const app::CostModel costs(plan, source);
  const app::Prediction none = with_recompute(plan, source, {"none"}), full = app::predict(plan, source);
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t most = none.bytes[rank].total(), least = full.bytes[rank].total();
    plan.recompute_memory = static_cast<double>(least + (most - least) / 4);
    const app::StepRecompute chosen = app::step_recompute(plan, rank);
    const std::vector<int> stages = plan.schedule.stages_of(rank);
    // The rank's bytes in passes; activations and operands of W scale with the tokens.
    const auto in_passes = [&](const Levels& levels, const std::vector<int64_t>& tokens) {
      std::vector<schedule::StageBytes> cells(plan.schedule.cells(), costs.of(plan.layers, 0).bytes);
      for (size_t i = 0; i < stages.size(); ++i) {
        for (int mb = 0; mb < 8; ++mb) {
          schedule::StageBytes& own = cells[plan.schedule.cell(stages[i], mb)];
          own = costs.of(costs.slice(plan.layers, stages[i]), levels[i][mb]).bytes;
          own.activation = own.activation * tokens[mb] / 512;
          own.weight_operands = own.weight_operands * tokens[mb] / 512;
        }
      }
      return schedule::peak_bytes(plan.schedule, cells, rank).total();
    };
    const std::vector<int64_t> whole(8, 512), shorter(8, 100),
        unequal{400, 350, 420, 300, 380, 450, 410, 330};
    const int64_t besides = least - in_passes(Levels(2, std::vector(8, Recompute::full)), whole);
    const auto fits = [&](const Levels& levels, const std::vector<int64_t>& tokens) {
      return static_cast<double>(besides + in_passes(levels, tokens)) <= plan.recompute_memory;
    };
    const auto recomputed = [](const Levels& levels) {
      int sum = 0;
      for (const auto& stage : levels) {
        for (const Recompute level : stage) sum += static_cast<int>(level);
      }
      return sum;
    };
    const Levels of_whole = chosen(whole), of_unequal = chosen(unequal), of_shorter = chosen(shorter);
    CHECK(recomputed(of_whole) < 16 * static_cast<int>(Recompute::full));
    CHECK(recomputed(of_unequal) < recomputed(of_whole));
    CHECK(recomputed(of_shorter) < recomputed(of_unequal));
    CHECK(fits(of_whole, whole));
    CHECK(fits(of_unequal, unequal));
    CHECK(fits(of_shorter, shorter));
    CHECK_FALSE(fits(of_unequal, whole));
  }
}

TEST_CASE("a plan's costs and bytes are those of its microbatches' levels") {
  const Overrides layout = with(bench_sizes(), {"distributed.pp_schedule=1f1b"});
  const auto predicted = [&](const std::string& words) {
    const app::Plan plan = plan_with(with(layout, {"train.recompute=" + words}));
    return app::predict(plan, app::make_cost_source(plan, ""));
  };
  const app::Prediction none = predicted("none"), full = predicted("full");
  const app::Prediction mixed = predicted("none:1/full:3,none");
  // Six of the first stage's eight backward passes recompute; the second stage does not.
  const double again = full.pipeline.ranks[0].busy - none.pipeline.ranks[0].busy;
  CHECK(mixed.pipeline.ranks[0].busy - none.pipeline.ranks[0].busy == Approx(again * 6 / 8));
  CHECK(mixed.pipeline.ranks[1].busy == Approx(none.pipeline.ranks[1].busy));
  CHECK(mixed.step_time > none.step_time);
  CHECK(mixed.step_time < full.step_time);
  CHECK(mixed.bytes[1].total() == none.bytes[1].total());
  // Two microbatches are in flight; at most one of them keeps all activations.
  CHECK(mixed.bytes[0].total() < none.bytes[0].total());
  CHECK(mixed.bytes[0].total() > full.bytes[0].total());
}

TEST_CASE("recompute chosen by stage fits wherever one word does, and costs no more") {
  for (const std::string name : {"1f1b", "interleaved_1f1b", "zbv", "gpipe"}) {
    const app::Plan plan = plan_with(with(bench_sizes(), {"distributed.pp_schedule=" + name}));
    const CostSource source = app::make_cost_source(plan, "");
    const app::Prediction none = app::predict(plan, source);
    app::FootprintCache dry_runs(plan.model);
    for (const std::string word : {"cheap", "selective", "full"}) {
      const app::Prediction uniform = with_recompute(plan, source, {word});
      const auto budget = static_cast<double>(uniform.peak_bytes());
      const auto [chosen, prediction] = app::choose_recompute(plan, none, source, budget, dry_runs);
      CAPTURE(name, word, chosen.job.train.recompute.words);
      CHECK(static_cast<double>(prediction.peak_bytes()) <= budget);
      CHECK(prediction.step_time <= uniform.step_time);
      CHECK(chosen.job.train.recompute != config::Recompute::none);
    }
  }
}

TEST_CASE("auto recomputes by stage before it gives up a faster schedule") {
  const std::vector<std::string> layout = {"distributed.pp=4", "distributed.pp_stages_per_rank=1",
                                           "distributed.pp_split=3,2,2,1"};
  const app::Plan plan = plan_with(with(bench_sizes(), layout));
  const CostSource source = app::make_cost_source(plan, "");
  const auto all = app::search(plan, source, {});
  const double budget = 0.97 * static_cast<double>(all.front().bytes.total());
  const auto found = app::search(plan, source, {.budget = budget});
  REQUIRE(found.front().fits);
  CHECK(found.front().layout.recompute.words.size() == 4);
  for (const app::Candidate& c : found) {
    if (!c.fits) continue;
    CHECK(static_cast<double>(c.bytes.total()) <= budget);
    CHECK(found.front().step_time <= c.step_time);
  }
  const app::Plan chosen = plan_with(with(
      bench_sizes(), layout,
      Overrides{"distributed.pp_schedule=auto", fmt::format("distributed.pp_memory_gb={}", budget / 1e9)}));
  CHECK(chosen.job.train.recompute == found.front().layout.recompute);
  CHECK(app::predict(chosen, source).step_time == found.front().step_time);
  // Each step chooses its own recompute only if its microbatches differ in length.
  CHECK(chosen.recompute_memory == 0);
  const Overrides exact = {"data.lengths=exact", "data.document_end=10", "distributed.pp_schedule=auto",
                           fmt::format("distributed.pp_memory_gb={}", budget / 1e9)};
  CHECK(plan_with(with(bench_sizes(), layout, exact)).recompute_memory == Approx(budget));
  CHECK(plan_with(with(bench_sizes(), layout, exact, Overrides{"distributed.pp_memory_gb=80"}))
            .recompute_memory == 0);
  // If the job says how much to recompute, the search keeps that.
  const app::Plan given = plan_with(with(bench_sizes(), layout, Overrides{"train.recompute=selective"}));
  for (const app::Candidate& c : app::search(given, source, {.budget = budget}))
    CHECK(c.layout.recompute == config::Recompute::selective);
}

TEST_CASE("a job that says how much to recompute is refused where auto would fit, and told so") {
  // On one rank no other order needs less memory.
  const Overrides layout =
      with(bench_sizes(), {"model.vocab_size=256", "distributed.pp=1", "distributed.pp_stages_per_rank=1",
                           "distributed.pp_split=even", "distributed.pp_schedule=1f1b"});
  const auto leanest = [&](const std::string& recompute, double budget) {
    const app::Plan plan = plan_with(with(layout, {"train.recompute=" + recompute}));
    const auto found = app::search(plan, app::make_cost_source(plan, ""), {.budget = budget});
    return std::ranges::min(found, {}, [](const app::Candidate& c) { return c.bytes.total(); }).bytes.total();
  };
  const int64_t none = leanest("none", 0);
  const int64_t most = leanest("auto", 1);  // nothing fits, so everything is recomputed
  REQUIRE(most < none);
  const auto chosen = [&](const std::string& recompute, int64_t budget) {
    return plan_with(
        with(layout, {"distributed.pp_schedule=auto", "train.recompute=" + recompute,
                      fmt::format("distributed.pp_memory_gb={}", static_cast<double>(budget) / 1e9)}));
  };
  const int64_t between = most + (none - most) / 2;
  CHECK_THROWS_WITH(chosen("none", between),
                    contains_text("no schedule fits") && contains_text("with recompute = \"none\"") &&
                        contains_text("smaller microbatches, or train.recompute = \"auto\""));
  CHECK(chosen("auto", between).job.train.recompute != config::Recompute::none);
  // The advice is absent if everything is recomputed already.
  for (const char* word : {"auto", "full"})
    CHECK_THROWS_WITH(chosen(word, most / 2),
                      contains_text("no schedule fits") && !contains_text("or train.recompute = \"auto\""));
}

TEST_CASE("auto finds an order where no named schedule fits, before stages recompute more") {
  const Overrides job = with(bench_sizes(), {"distributed.pp=4", "distributed.pp_stages_per_rank=1",
                                             "distributed.pp_split=3,2,2,1", "distributed.pp_schedule=auto"});
  const Overrides kept = with(job, {"train.recompute=none"});
  const app::Plan plan = plan_with(job);
  const CostSource source = app::make_cost_source(plan, "");
  const auto all = app::search(plan, source, {});
  const auto leanest = static_cast<double>(
      std::ranges::min(all, {}, [](const app::Candidate& c) { return c.bytes.total(); }).bytes.total());
  const auto best = [&](const Overrides& overrides, double budget, int effort) {
    return app::search(plan_with(overrides), source, {.budget = budget, .order_effort = effort}).front();
  };
  for (const double part : {.97, .95}) {
    const double budget = part * leanest;
    CHECK_FALSE(best(kept, budget, 0).fits);
    const app::Candidate order = best(kept, budget, 10);
    CHECK((order.fits && order.layout.schedule == "search"));
    CHECK(static_cast<double>(order.bytes.total()) <= budget);
    // Also tries layouts that recompute more, with a named schedule or a searched order.
    const app::Candidate either = best(job, budget, 10);
    CHECK(either.step_time < 0.99 * best(job, budget, 0).step_time);
    CHECK(either.step_time <= order.step_time);
    CHECK((either.layout.recompute == order.layout.recompute) == (part > .96));

    const app::Plan chosen = plan_with(with(job, {fmt::format("distributed.pp_memory_gb={}", budget / 1e9)}));
    CHECK(chosen.job.distributed.pp_schedule == "search");
    CHECK(chosen.job.train.recompute == either.layout.recompute);
    CHECK(app::predict(chosen, source).step_time == either.step_time);
    REQUIRE(chosen.order == app::Order::searched);
    CHECK(chosen.named_ratio > 1);
    // Also in a plan by other costs.
    const auto gain = [&](const char* device) {
      const app::CostSource other = app::make_cost_source(chosen, device);
      const app::CostModel costs(chosen, other);
      const app::Prediction p = app::predict(chosen, costs);
      const std::string text =
          app::render_plan(chosen, p, costs, other, {.width = 200}, app::context_of(chosen, p, other, 0, ""));
      const size_t begin = text.find(" % more"), comma = text.rfind(", ", begin);
      REQUIRE(begin != std::string::npos);
      return text.substr(comma, begin - comma);
    };
    CHECK(gain("h100") == gain("cpu"));
  }
}

TEST_CASE("a step of days fits into the clock that balances documents by the schedule") {
  const auto end_of = [](const Overrides& more) {
    const app::Plan plan = small_plan(small_job_text(), "run",
                                      with({"distributed.pp=2", "data.lengths=exact", "data.document_end=10",
                                            "distributed.pp_costs=cpu", "train.grad_accum_steps=4"},
                                           more));
    const schedule::SizedCosts costs = app::balance_costs(plan);
    const int64_t tokens = plan.job.train.micro_batch_size * plan.job.train.seq_len;
    const std::vector<int64_t> all(4, tokens), squares(4, tokens * plan.job.train.seq_len);
    const int64_t end = schedule::step_clock(plan.schedule, costs)(all, squares);
    const double seconds = app::predict(plan, app::make_cost_source(plan, "cpu")).pipeline.step_time;
    return std::pair(seconds, static_cast<double>(end));
  };
  const auto [short_step, femtoseconds] = end_of({});
  CHECK(femtoseconds / 1e15 == Approx(short_step).epsilon(0.05));
  const auto [days, ticks] = end_of({"model.hidden_size=65536", "model.intermediate_size=262144",
                                     "train.seq_len=8192", "train.micro_batch_size=64"});
  REQUIRE(days > 86400);
  CHECK(ticks > 1e17);
}

TEST_CASE("a searched order and the stages under it are found together") {
  const Overrides job = with(bench_sizes(), {"distributed.pp=4", "distributed.pp_stages_per_rank=1"});
  const app::Plan plan = plan_with(job);
  const CostSource source = app::make_cost_source(plan, "");
  const auto best = [&](const app::Plan& of) {
    return app::search(of, source, {.order_effort = 10}).front();
  };
  const app::Candidate together = best(plan);
  REQUIRE(together.is_order());
  // Compares with a searched order for each split that the named schedules try.
  std::set<std::string> splits;
  for (const app::Candidate& c : app::search(plan, source, {})) {
    const auto split = fmt::format("distributed.pp_split={}",
                                   fmt::join(pptrain::pipeline::layers_per_stage(c.layout.layers), ","));
    if (c.layout.spread_head || !splits.insert(split).second) continue;
    CAPTURE(split);
    CHECK(together.step_time < 0.98 * best(plan_with(with(job, {split}))).step_time);
  }
  CHECK(splits.size() > 1);
}

TEST_CASE("auto keeps a named schedule that an order is less than 1 % faster than") {
  const Overrides job = with(bench_sizes(), {"distributed.pp=4", "distributed.pp_stages_per_rank=1",
                                             "distributed.pp_split=3,2,2,1", "distributed.pp_schedule=auto"});
  const app::Plan plan = plan_with(job);
  CHECK(plan.order != app::Order::searched);
  const CostSource source = app::make_cost_source(plan, "");
  const auto named = app::search(plan, source, {});
  CHECK(plan.job.distributed.pp_schedule == named.front().layout.schedule);
  const auto orders = app::search(plan, source, {.order_effort = 10});
  CHECK(orders.front().layout.schedule == "search");
  CHECK(orders.front().step_time < named.front().step_time);
  CHECK(orders.front().step_time > 0.99 * named.front().step_time);
  CHECK_THAT(app::render_ranking(orders, plan.job, 0),
             contains_text("search: an order found for these costs, ") &&
                 contains_text("% faster than " + named.front().layout.schedule));
}

TEST_CASE("the search over microbatches keeps the samples of a step") {
  const app::Plan plan = plan_with(bench_sizes());
  const auto found = app::search(plan, app::make_cost_source(plan, ""), {.microbatches = true});
  std::set<int64_t> counts;
  for (const app::Candidate& c : found) {
    CHECK(c.layout.micro_batch_size * c.layout.grad_accum_steps == 8);
    CHECK(c.lowered->microbatches == c.layout.grad_accum_steps);
    counts.insert(c.layout.grad_accum_steps);
  }
  CHECK(counts == std::set<int64_t>{1, 2, 4, 8});
  const std::string text = app::render_ranking(found, plan.job, 0, /*width=*/80, /*most_rows=*/5);
  CHECK_THAT(text, contains_text(found.front().layout.schedule));
  CHECK_THAT(text, contains_text(fmt::format("{} more: --all", found.size() - 5)));
  check_width(text, 80);
}

TEST_CASE("each row of the ranking is a job with its step, and no two are one schedule") {
  const app::Plan plan = plan_with(bench_sizes());
  const CostSource source = app::make_cost_source(plan, "");
  const auto found = app::search(plan, source, {.microbatches = true, .budget = 0.8e9});
  std::set<std::pair<int64_t, std::string>> lists;  // microbatches, actions and split
  for (const app::Candidate& c : found) {
    const Overrides keys = c.layout.overrides(plan.job);
    CAPTURE(keys);
    const app::Plan again = plan_with(with(bench_sizes(), keys));
    CHECK(app::predict(again, source).step_time == c.step_time);
    std::string actions;
    for (const auto& list : c.lowered->actions) {
      for (const schedule::Action& action : list) actions += schedule::to_string(action) + ',';
    }
    actions += fmt::format("{}", fmt::join(pipeline::layers_per_stage(c.layout.layers), "+")) +
               fmt::format("{}", fmt::join(c.layout.recompute.words, "+"));
    CHECK(lists.emplace(c.layout.grad_accum_steps, actions).second);
  }
  // The text has these keys in full; all formats have all rows.
  const std::string text = app::render_ranking(found, plan.job, 0.8e9, /*width=*/80, found.size());
  const auto json = nlohmann::json::parse(app::ranking_json(found, plan.job, 0));
  const std::string csv = app::ranking_csv(found, plan.job);
  REQUIRE(json["ranking"].size() == found.size());
  CHECK(std::ranges::count(csv, '\n') == std::ssize(found) + 1);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const std::string& key : found[i].layout.overrides(plan.job)) {
      CHECK_THAT(text, contains_text("--set " + key));
      CHECK_THAT(csv, contains_text(key));
    }
    CHECK(json["ranking"][i]["set"].get<Overrides>() == found[i].layout.overrides(plan.job));
  }
}

TEST_CASE("a plan's text fits its width, and has one step time and units") {
  for (const Overrides& job :
       {Overrides{"distributed.pp=2", "train.grad_accum_steps=4"},
        Overrides{"distributed.pp=4", "distributed.pp_schedule=zb_h2", "train.grad_accum_steps=40"},
        Overrides{"distributed.pp=2", "distributed.dp_shard=2", "distributed.tp=2",
                  "train.grad_accum_steps=8", "distributed.reshard_after_forward=true"}}) {
    const app::Plan plan = plan_with(job);
    const CostSource source = app::make_cost_source(plan, "cpu");
    const app::CostModel costs(plan, source);
    const app::Prediction p = app::predict(plan, costs);
    for (const int width : {80, 100, 137, 200}) {
      const std::string text = app::render_plan(plan, p, costs, source, {.width = width});
      CAPTURE(job, width, text);
      check_width(text, static_cast<size_t>(width));
      CHECK_THAT(text, contains_text("step " + schedule::format_seconds(p.step_time) + ": "));
      CHECK_THAT(text, contains_text("MFU ") && contains_text("MB at the worst moment"));
      CHECK(text.find("step time") == std::string::npos);
    }
  }
}

TEST_CASE("MFU is of the data sheet's rate, of the job's, or of the CPU's products") {
  const auto peak = [](const Overrides& job, const std::string& costs) {
    const app::Plan plan = plan_with(job);
    return app::peak_flops(plan.job, app::make_cost_source(plan, costs));
  };
  CHECK(peak({"metrics.peak_tflops=0"}, "h100") == 989e12);
  CHECK(peak({"metrics.peak_tflops=0"}, "b200") == 2250e12);
  CHECK(peak({"metrics.peak_tflops=3"}, "h100") == 3e12);
  CHECK(peak({"metrics.peak_tflops=0", "run.threads=2", "train.dtype=bf16"}, "cpu") ==
        2 * app::find_device("cpu").bfloat16_flops);
}

TEST_CASE("MFU in FP8 is of bf16's peak, and says so") {
  const auto text = [](const char* fp8) {
    const app::Plan plan = plan_with({"train.dtype=bf16", "model.intermediate_size=64", fp8});
    const CostSource source = app::make_cost_source(plan, "h100");
    const app::CostModel costs(plan, source);
    return app::render_plan(plan, app::predict(plan, costs), costs, source, {.width = 200});
  };
  CHECK_THAT(text("train.fp8=rowwise"), contains_text("% of bf16's peak; bubble"));
  CHECK_THAT(text("train.fp8=off"), !contains_text("of bf16's peak"));
}

TEST_CASE("a plan that is faster than the peak of its job has an MFU of 100 %, not more") {
  const app::Plan plan = plan_with({"metrics.peak_tflops=1e-9"});
  const CostSource source = app::make_cost_source(plan, "cpu");
  const app::CostModel costs(plan, source);
  const app::Prediction p = app::predict(plan, costs);
  CHECK_THAT(app::render_plan(plan, p, costs, source, {.width = 200}), contains_text("MFU 100.0 %;"));
  CHECK(app::plan_json(plan, p, costs, source).at("predicted_mfu") == 1);
}

TEST_CASE("costs are measured on this machine, and scale the model to it") {
  const app::Plan plan =
      plan_with({"distributed.pp=2", "train.grad_accum_steps=4", "model.hidden_size=128",
                 "model.intermediate_size=384", "train.seq_len=128", "metrics.peak_tflops=0"});
  const CostSource source = app::measure_machine(plan);
  CHECK_THAT(source.description, contains_text("measured on this machine in "));
  REQUIRE(source.product_flops);
  CHECK(app::peak_flops(plan.job, source) == *source.product_flops);
  CHECK(*source.product_flops > 1e8);
  // Its times of a stage are the times of the same passes here. The bounds allow for a busy machine's noise
  // and exclude a mistake in units.
  const app::CostModel costs(plan, source);
  const auto stage = costs.stage(models::stage_slice(plan.layers, 0)).time;
  const double flops = 2.0 * 256 * 2 * (2 * 128 * 32 + 2 * 128 * 16 + 3 * 128 * 384);
  CHECK(stage.forward > flops / (3 * *source.product_flops));
  CHECK(stage.forward < 1);
  CHECK(source.calibration.optimizer > 0);
  CHECK(app::predict(plan, source).step_time > 0);
  // A model too large to measure keeps its modelled costs; the test checks that this is quick.
  const app::Plan large = plan_with({"model.hidden_size=8192", "model.intermediate_size=28672"});
  CHECK_THAT(app::measure_machine(large).description, contains_text("too large to measure here"));
}

TEST_CASE("costs from a run's trace give back its own times") {
  const TemporaryFolder folder;
  const std::vector<std::string> layout = {"distributed.pp=2",   "train.grad_accum_steps=4",
                                           "train.steps=5",      "train.seq_len=64",
                                           "profile.trace=true", R"(train.recompute=["cheap", "none"])"};
  run_small_job(small_job_text(), folder.path() / "run", layout);
  const std::string trace_path = (folder.path() / "run/trace.json").string();
  const app::TraceSummary trace = app::read_trace(trace_path);
  CHECK(trace.layers == pipeline::LayerAssignment{{0, 2}, {2, 4}});
  CHECK(trace.schedule == "1f1b");
  CHECK(trace.device == "cpu");
  CHECK(trace.run.job ==
        small_plan(small_job_text(), folder.path() / "run", layout).job);  // as it ran, whole
  REQUIRE(trace.stages.size() == 2);
  CHECK(trace.step_time > 0);
  CHECK(trace.bubble.contains("bubble"));

  const app::Plan plan = plan_with(with(layout, {"distributed.pp_costs=" + trace_path}));
  const CostSource source = app::make_cost_source(plan, trace_path);
  const schedule::Costs costs = app::predict(plan, source).costs;
  double measured = 0, predicted = 0;
  for (size_t i = 0; i < 2; ++i) {
    // The last stage's forward is as measured, or more if noise would leave nothing for the head.
    const double forward = trace.stages[i].at("forward");
    if (i == 0) CHECK(costs.stages[i].time.forward == Approx(forward).epsilon(1e-6));
    CHECK(costs.stages[i].time.forward >= forward * (1 - 1e-6));
    measured += trace.stages[i].at("backward");
    predicted += costs.stages[i].time.backward;
  }
  CHECK(predicted == Approx(measured).epsilon(0.01));

  CHECK_THROWS_WITH(app::make_cost_source(plan_with(with(layout, {"train.seq_len=32"})), trace_path),
                    contains_text("train.seq_len = 64, but the job has 32"));
  CHECK_THROWS_WITH(app::read_trace(folder.path() / "none.json"), contains_text("cannot be read"));
  std::ofstream(folder.path() / "bad.json") << "{\"traceEvents\": []}";
  CHECK_THROWS_WITH(app::read_trace(folder.path() / "bad.json"), contains_text("not a trace of pptrain"));

  // The trace of a deeper model is accepted too; a trace with no ranks or one rank too many is not.
  CHECK_NOTHROW(app::make_cost_source(plan_with(with(layout, {"model.num_hidden_layers=2"})), trace_path));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::ifstream file(trace_path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    const size_t place = text.find(from);
    REQUIRE(place != std::string::npos);
    const auto path = folder.path() / "changed.json";
    std::ofstream(path) << text.replace(place, from.size(), to);
    return path;
  };
  CHECK_THROWS_AS(app::read_trace(changed("\\npp = 2", "\\npp = -2")), UsageError);
  CHECK_THROWS_AS(app::read_trace(changed("\"tid\":1,\"ts\"", "\"tid\":9,\"ts\"")), UsageError);
  CHECK_THROWS_AS(app::read_trace(changed("\"layers_per_stage\":[2,2]", "\"layers_per_stage\":[2,3]")),
                  UsageError);
}

TEST_CASE("a trace of a mixture with other experts is none of the job's costs") {
  const TemporaryFolder folder;
  const Overrides job = {"model.arch=qwen3_moe",
                         "model.num_experts=4",
                         "model.num_experts_per_tok=2",
                         "model.moe_intermediate_size=16",
                         "model.mlp_only_layers=[1]",
                         "train.grad_accum_steps=2",
                         "train.steps=4",
                         "profile.trace=true"};
  run_small_job(small_job_text(), folder.path() / "run", job);
  const std::string path = (folder.path() / "run/trace.json").string();
  CHECK_NOTHROW(app::make_cost_source(plan_with(job), path));
  const auto refused = [&](const std::string& change) {
    try {
      app::make_cost_source(plan_with(with(job, Overrides{change})), path);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused("model.num_experts=8"), contains_text("num_experts = 4, but the job has 8"));
  CHECK_THAT(refused("model.num_experts_per_tok=1"), contains_text("num_experts_per_tok = 2"));
  CHECK_THAT(refused("model.moe_intermediate_size=64"),
             contains_text("moe_intermediate_size = 16, but the job has 64"));
  CHECK_THAT(refused("model.decoder_sparse_step=2"), contains_text("decoder_sparse_step = 1"));
  CHECK_THAT(refused("model.mlp_only_layers=[2]"),
             contains_text("mlp_only_layers = [1], but the job has [2]"));
}

TEST_CASE("costs from a trace of one mesh predict another") {
  const TemporaryFolder folder;
  const Overrides job = {"train.grad_accum_steps=4", "train.steps=5", "train.seq_len=64"};
  run_small_job(small_job_text(), folder.path() / "run",
                with(job, {"distributed.dp_replicate=2", "profile.trace=true"}));
  const std::string trace_path = (folder.path() / "run/trace.json").string();
  const app::TraceSummary trace = app::read_trace(trace_path);
  CHECK(trace.run.mesh.dp_replicate == 2);
  REQUIRE(trace.ranks.size() == 2);
  REQUIRE(trace.stages.size() == 1);
  const app::Plan plan = plan_with(with(job, {"distributed.pp=2", "distributed.pp_costs=" + trace_path}));
  const CostSource source = app::make_cost_source(plan, trace_path);
  const schedule::Costs costs = app::predict(plan, source).costs;
  // Each boundary between stages costs a little itself.
  CHECK(costs.stages[0].time.forward + costs.stages[1].time.forward ==
        Approx(trace.stages[0].at("forward")).epsilon(0.02));
  CHECK(costs.stages[0].time.backward + costs.stages[1].time.backward ==
        Approx(trace.stages[0].at("backward")).epsilon(0.02));
  // The optimizer's time follows the parameters that a rank steps: here all, on two stages half each.
  const app::Prediction p = app::predict(plan, source);
  CHECK(p.optimizer_time[0] + p.optimizer_time[1] == Approx(trace.phases.at("optimizer")).epsilon(1e-6));
}

TEST_CASE("what a traced run waited for its links within its passes is no part of what they compute") {
  const TemporaryFolder folder;
  const Overrides job = {"distributed.tp=2",
                         "distributed.ranks_per_host=1",
                         "distributed.host_link_gbps=10",
                         "distributed.host_latency_us=1",
                         "train.seq_len=64",
                         "train.steps=5"};
  run_small_job(small_job_text(), folder.path() / "run", with(job, {"profile.trace=true"}));
  const std::string trace_path = (folder.path() / "run/trace.json").string();
  const app::TraceSummary trace = app::read_trace(trace_path);
  const app::Plan plan = plan_with(job);
  const CostSource source = app::make_cost_source(plan, trace_path);
  CHECK(source.device.between_hosts.bandwidth == Approx(10e9 / 8));
  CHECK(source.device.between_hosts.latency == Approx(1e-6));
  const auto cost = app::predict(plan, source).costs.stages[0].time;
  CHECK(cost.forward == Approx(trace.stages[0].at("forward")).epsilon(1e-6));
  CHECK(cost.backward == Approx(trace.stages[0].at("backward")).epsilon(1e-6));
}

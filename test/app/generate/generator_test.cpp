// Generation through every kind of layout, against passes over whole sequences without a cache.
#include "app/generate/generator.h"

#include <cmath>
#include <map>
#include <mutex>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/base/error.h"
#include "test/app/small_job.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using app::GenerateOptions;
using app::Sequence;

namespace {

const Overrides wide_positions = {"model.max_position_embeddings=64", "train.grad_accum_steps=4",
                                  "model.initializer_range=0.2", "eval.interval=0"};
const Overrides mixture = {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                           "model.moe_intermediate_size=24"};

std::string small_text() {
  std::string text = small_job_text();
  const std::string batches = "batches = 2\n";  // it has no use without validation
  return text.erase(text.find(batches), batches.size());
}

const std::vector<std::vector<int64_t>> prompts = {
    {5, 9, 200, 31, 7}, {77}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {9, 9}, {250, 3, 12}};

// The generated tokens; every rank must have the same.
std::vector<std::vector<int64_t>> generate(const Overrides& overrides, const GenerateOptions& options,
                                           std::vector<std::string>* heard = nullptr) {
  const TemporaryFolder folder;
  const app::Plan plan = small_plan(small_text(), folder.path() / "run", with(wide_positions, overrides));
  std::mutex mutex;
  std::map<int, std::vector<std::vector<int64_t>>> by_rank;
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context, app::Purpose::generate);
    model.initialise();
    std::vector<Sequence> sequences;
    for (const auto& prompt : prompts)
      sequences.emplace_back(prompt, static_cast<int64_t>(sequences.size()), options.stop, nullptr);
    app::Generator generator(context, model, options);
    generator.run(sequences, [&](const Sequence& sequence) {
      if (context.root() && heard != nullptr)
        heard->push_back(fmt::format("{}:{}", sequence.number(), sequence.tokens().back()));
    });
    const std::lock_guard lock(mutex);
    for (const Sequence& sequence : sequences) by_rank[context.mesh.rank()].push_back(sequence.generated());
    return 0;
  });
  for (const auto& [rank, tokens] : by_rank) CHECK(tokens == by_rank.at(0));
  return by_rank.at(0);
}

// Runs whole sequences through the whole model for each token, one sequence at a time.
std::vector<std::vector<int64_t>> generate_plainly(const Overrides& overrides,
                                                   const GenerateOptions& options) {
  const TemporaryFolder folder;
  const app::Plan plan = small_plan(small_text(), folder.path() / "run", with(wide_positions, overrides));
  std::vector<std::vector<int64_t>> all;
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context, app::Purpose::evaluate);
    model.initialise();
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int64_t> tokens = prompts[i];
      for (int64_t n = 0; n < options.stop.max_tokens; ++n) {
        const auto count = static_cast<int64_t>(tokens.size());
        const data::Microbatch data{.tokens = at::tensor(tokens, at::kLong),
                                    .labels = {},
                                    .positions = at::arange(count, at::kInt),
                                    .segments = tokens::equal_segments(1, count, at::kCPU)};
        const at::Tensor logits =
            model.stages().front().stage->logits(data, {}, at::tensor({count - 1}, at::kLong)).to(at::kFloat);
        tokens.push_back(app::choose(options.sampling,
                                     {logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())},
                                     tokens, i));
      }
      all.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(prompts[i].size()), tokens.end());
    }
    return 0;
  });
  return all;
}

GenerateOptions greedy(int64_t max_tokens = 24) {
  return {.sampling = {.temperature = 0}, .stop = {.max_tokens = max_tokens, .ids = {}, .texts = {}}};
}

Overrides pipelined(const std::string& schedule, int pp, int stages_per_rank = 0) {
  Overrides result = {"distributed.pp_schedule=" + schedule, fmt::format("distributed.pp={}", pp)};
  if (stages_per_rank > 0)
    result.push_back(fmt::format("distributed.pp_stages_per_rank={}", stages_per_rank));
  return result;
}

}  // namespace

TEST_CASE("every pipeline generates what passes over whole sequences give", "[generator]") {
  const Overrides model =
      GENERATE(Overrides{}, Overrides{"model.tie_word_embeddings=true", "model.arch=qwen3"}, mixture);
  GenerateOptions options = greedy();
  const auto expected = generate_plainly(model, options);
  CHECK(generate(model, options) == expected);
  for (const Overrides& layout : {pipelined("1f1b", 2), pipelined("1f1b", 4), pipelined("zbv", 2),
                                  pipelined("interleaved_1f1b", 2, 2)}) {
    CAPTURE(layout);
    CHECK(generate(with(model, layout), options) == expected);
    options.in_flight = 2;  // three waves
    CHECK(generate(with(model, layout), options) == expected);
    options.in_flight = 32;
  }
}

// When a text crosses the original length, its keys are recomputed; other texts of the pass keep theirs.
TEST_CASE("LongRoPE generates what passes over whole sequences give, each by its own length", "[generator]") {
  const Overrides model = with(longrope_up_to(8), {"model.max_position_embeddings=64"});
  const auto expected = generate_plainly(model, greedy());
  CHECK(expected !=
        generate_plainly(with(longrope_up_to(64), {"model.max_position_embeddings=64"}), greedy()));
  for (const Overrides& layout : {Overrides{}, pipelined("1f1b", 2), pipelined("zbv", 2),
                                  Overrides{"distributed.tp=2"}, Overrides{"distributed.cp=2"}}) {
    CAPTURE(layout);
    CHECK(generate(with(model, layout), greedy()) == expected);
  }
  GenerateOptions alone = greedy();
  alone.in_flight = 1;
  CHECK(generate(model, alone) == expected);
}

TEST_CASE("dynamic RoPE generates the same in every company and on every layout", "[generator]") {
  const Overrides model = with(dynamic_rope(8), {"train.seq_len=64"});
  GenerateOptions alone = greedy();
  alone.in_flight = 1;
  const auto expected = generate(model, alone);
  for (const Overrides& layout : {Overrides{}, pipelined("1f1b", 2), Overrides{"distributed.tp=2"}}) {
    CAPTURE(layout);
    CHECK(generate(with(model, layout), greedy()) == expected);
  }
}

TEST_CASE("drawn tokens are the same on every pipeline and in every company", "[generator]") {
  GenerateOptions options = greedy();
  options.sampling = {.repetition_penalty = 1.1, .temperature = 0.9, .top_k = 60, .top_p = 0.95, .seed = 3};
  const auto expected = generate_plainly({}, options);
  CHECK(expected != generate_plainly({}, greedy()));
  for (const Overrides& layout : {pipelined("1f1b", 1), pipelined("1f1b", 2), pipelined("zbv", 2)}) {
    CAPTURE(layout);
    CHECK(generate(layout, options) == expected);
  }
  options.in_flight = 1;
  CHECK(generate(pipelined("1f1b", 2), options) == expected);
}

TEST_CASE("tensor, data, context and expert ranks generate the same", "[generator]") {
  const auto axes = [](Overrides keys) { return keys; };
  const auto expected = generate_plainly({}, greedy());
  for (const Overrides& layout :
       {axes({"distributed.tp=2"}), axes({"distributed.tp=4"}),
        axes({"distributed.tp=2", "distributed.pp=2"}), axes({"distributed.dp_shard=2", "distributed.pp=2"}),
        axes({"distributed.dp_shard=2", "distributed.reshard_after_forward=true"}),
        axes({"distributed.dp_replicate=2"}), axes({"distributed.cp=2", "distributed.pp=2"})}) {
    CAPTURE(layout);
    CHECK(generate(layout, greedy()) == expected);
  }
  const auto experts = generate_plainly(mixture, greedy());
  for (const Overrides& layout : {axes({"distributed.dp_shard=2", "distributed.ep=2"}),
                                  axes({"distributed.tp=2", "distributed.ep=2"})}) {
    CAPTURE(layout);
    CHECK(generate(with(mixture, layout), greedy()) == experts);
  }
}

TEST_CASE("sequences end at different times, and every token is heard of once", "[generator]") {
  GenerateOptions options = greedy();
  const auto whole = generate_plainly({}, options);
  options.stop.ids = {whole[0][4], whole[2][9]};
  std::vector<std::string> heard;
  const auto cut = generate(pipelined("1f1b", 2), options, &heard);
  size_t tokens = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto stop = std::ranges::find_first_of(whole[i], options.stop.ids);
    CHECK(cut[i] == std::vector<int64_t>(whole[i].begin(), stop));
    tokens += cut[i].size() + (stop == whole[i].end() ? 0 : 1);
  }
  CHECK(heard.size() == tokens);
}

TEST_CASE("bfloat16 generates on every pipeline alike", "[generator]") {
  const Overrides bf16 = {"train.dtype=bf16"};
  const auto expected = generate(bf16, greedy());
  CHECK(expected != generate({}, greedy()));
  GenerateOptions alone = greedy();
  alone.in_flight = 1;
  const auto one = generate(bf16, alone);
  for (const int ranks : {2, 4}) CHECK(generate(with(bf16, pipelined("1f1b", ranks)), alone) == one);
}

TEST_CASE("prompts that the model cannot take are refused by name", "[generator]") {
  models::ModelConfig model = small_model("llama", false);  // 16 positions, vocabulary 61
  const auto check = [&](const std::vector<int64_t>& prompt, int64_t max_tokens) {
    app::Generator::check(model, prompt, 2, max_tokens);
  };
  check({1, 2, 3}, 14);
  CHECK_THROWS_WITH(check({1, 2, 3}, 15),
                    contains_text("prompt 3: 3 tokens and 15 more") && contains_text("--max-tokens 14"));
  CHECK_THROWS_WITH(check({1, 61}, 2), contains_text("the id 61 is not in the model's vocabulary"));
  CHECK_THROWS_WITH(check({-1}, 2), contains_text("the id -1"));
  CHECK_THROWS_AS(check({}, 2), UsageError);
}

TEST_CASE("logits from the cache are those of whole sequences", "[generator]") {
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const std::string arch = GENERATE("llama", "qwen3", "mixtral");
  const models::ModelConfig model = small_model(arch, false);
  const auto attention = std::make_shared<attention::CachedAttention>(attention::make_local_attention());
  models::StageParallelism parallelism;
  parallelism.attention = attention;
  const auto stages_in = [&](at::ScalarType dtype) {
    return build_stages(model, {model.layers}, dtype, 7, config::Recompute::none, parallelism);
  };
  const Stages stages = stages_in(type);
  models::TransformerStage& stage = *stages.front();
  const data::Microbatch whole = random_documents(model, {12, 7}, 1);
  const at::Tensor expected = stage.logits(whole, {}, {});
  // Two runs in bfloat16 differ by up to twice the rounding error, and all of it may be in the compared
  // tokens.
  const double rounding =
      relative_error(expected, stages_in(at::kFloat).front()->logits(whole, {}, {})).value();
  const auto bound = [&](size_t tokens) {
    return type == at::kFloat ? 2e-6 : 2 * rounding * std::sqrt(19.0 / static_cast<double>(tokens));
  };
  attention::KeyValueCache cache(
      {.layers = model.layers, .kv_heads = model.kv_heads, .head_dim = model.head_dim, .dtype = type},
      std::vector<int64_t>{12, 7});
  const auto part = [&](const std::vector<int64_t>& places, std::vector<int32_t> starts) {
    const at::Tensor index = at::tensor(places, at::kLong);
    return data::Microbatch{.tokens = whole.tokens.index_select(0, index),
                            .labels = {},
                            .positions = whole.positions.index_select(0, index),
                            .segments = tokens::make_segments(std::move(starts), at::kCPU)};
  };
  const auto run = [&](const std::vector<int64_t>& places, std::vector<int32_t> starts,
                       const std::vector<attention::CachedDocument>& documents) {
    const attention::CachedAttention::Use use(*attention, cache, documents);
    const at::Tensor logits = stage.logits(part(places, std::move(starts)), {}, {});
    CHECK(relative_error(logits, expected.index_select(0, at::tensor(places, at::kLong))) <
          bound(places.size()));
  };
  run({0, 1, 2, 12, 13}, {0, 3, 5}, {{.slot = 0, .past = 0}, {.slot = 1, .past = 0}});
  for (int64_t i = 0; i < 5; ++i)
    run({3 + i, 14 + i}, {0, 1, 2}, {{.slot = 0, .past = 3 + i}, {.slot = 1, .past = 2 + i}});
  for (int64_t i = 8; i < 12; ++i) run({i}, {0, 1}, {{.slot = 0, .past = i}});
}

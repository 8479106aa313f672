// Jobs with the largest accepted sizes: their plans match sums in doubles, so nothing overflowed.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "app/forecast/prediction.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "models/flops.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

// Sizes from 1 to 2^bits; all magnitudes are equally likely.
class Sizes {
 public:
  explicit Sizes(uint64_t seed) : random_(seed) {}

  int64_t any(int bits) { return int64_t{1} << below(bits + 1); }
  bool coin() { return below(2) == 1; }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  std::mt19937_64 random_;
};

using Job = std::map<std::string, int64_t>;

Job draw(Sizes& sizes) {
  Job job = {{"model.hidden_size", sizes.any(24)},      {"model.intermediate_size", sizes.any(24)},
             {"model.num_hidden_layers", sizes.any(8)}, {"model.num_attention_heads", sizes.any(16)},
             {"model.head_dim", 2 * sizes.any(15)},     {"model.vocab_size", 256 * sizes.any(20)},
             {"train.seq_len", sizes.any(24)},          {"train.micro_batch_size", sizes.any(24)},
             {"train.grad_accum_steps", sizes.any(8)},  {"distributed.dp_replicate", sizes.any(20)}};
  job["model.num_key_value_heads"] = job["model.num_attention_heads"];
  return job;
}

std::string text_of(const Job& job, bool experts) {
  std::string text = "run.dir = 'none'\ndata.path = '/dev/null'\n";
  for (const auto& [key, value] : job) text += fmt::format("{} = {}\n", key, value);
  if (experts) text += "model.arch = 'mixtral'\nmodel.num_experts = 64\nmodel.num_experts_per_tok = 8\n";
  return text;
}

// The weights of GEMMs; norms are below the tolerance.
double parameters_of(const Job& job, bool experts) {
  const auto size = [&](const char* key) { return static_cast<double>(job.at(key)); };
  const double hidden = size("model.hidden_size");
  const double attention = 4 * hidden * size("model.num_attention_heads") * size("model.head_dim");
  const double inner =
      3 * hidden * size("model.intermediate_size") * (experts ? 64 : 1) + (experts ? 64 * hidden : 0);
  return size("model.num_hidden_layers") * (attention + inner + 2 * hidden) +
         2 * hidden * size("model.vocab_size") + hidden;
}

// Dry runs of routers and of the head process the tokens in chunks, so the longest lists take minutes.
bool is_soon_predicted(const Job& job, bool experts) {
  const int64_t tokens = job.at("train.seq_len") * job.at("train.micro_batch_size");
  return tokens <= (experts ? 1 << 14 : 1 << 20) && tokens * job.at("model.vocab_size") <= int64_t{1} << 36;
}

}  // namespace

TEST_CASE("what is accepted is counted without overflow") {
  Sizes sizes(5);
  int planned = 0, predicted = 0, refused = 0;
  double largest = 0, longest = 0;
  while (planned < 200 && refused < 2000) {
    const bool experts = sizes.coin();
    const Job job = draw(sizes);
    const std::string text = text_of(job, experts);
    INFO(text);
    std::optional<app::Plan> plan;
    try {
      plan = app::parse_plan(text, "job.toml", {}, {.needs_files = false});
    } catch (const UsageError& error) {
      ++refused;
      CHECK(std::string(error.what()).find(", the most ") != std::string::npos);
      continue;
    }
    ++planned;
    const double expected = parameters_of(job, experts);
    CHECK(static_cast<double>(models::parameter_count(plan->model)) == Approx(expected).epsilon(1e-12));
    CHECK(models::flops_per_token(plan->model, job.at("train.seq_len")) > 0);
    largest = std::max(largest, expected);
    longest =
        std::max(longest, static_cast<double>(job.at("train.seq_len") * job.at("train.micro_batch_size")));
    if (!is_soon_predicted(job, experts)) continue;
    ++predicted;
    const app::Prediction prediction =
        app::predict(*plan, app::make_cost_source(*plan, plan->job.distributed.pp_costs));
    CHECK(prediction.step_time > 0);
    CHECK(std::isfinite(prediction.step_time));
    for (const app::RankBytes& rank : prediction.bytes) {
      for (const auto& [kind, bytes] : rank.kinds()) {
        INFO(kind);
        CHECK(bytes >= 0);
        CHECK(bytes < int64_t{1} << 62);
      }
      // fp32 masters and bf16 copies, some of them rounded up.
      CHECK(static_cast<double>(rank.weights) >= 4 * expected);
      CHECK(static_cast<double>(rank.weights) <= 6.01 * expected + 1e7);
      CHECK(static_cast<double>(rank.gradients) >= 4 * expected);
    }
  }
  CHECK(planned == 200);
  CHECK(refused > 20);
  CHECK(predicted > 40);
  CHECK(largest > std::pow(2.0, 46));  // the edge was met
  CHECK(longest > std::pow(2.0, 27));
}

TEST_CASE("the text of a model's size says how many parameters learn") {
  const Job job = {{"model.hidden_size", 1024},     {"model.intermediate_size", 4096},
                   {"model.num_hidden_layers", 12}, {"model.num_attention_heads", 16},
                   {"model.head_dim", 64},          {"model.num_key_value_heads", 16},
                   {"model.vocab_size", 32768},     {"train.seq_len", 16},
                   {"train.micro_batch_size", 1},   {"train.grad_accum_steps", 1}};
  const auto text = [&](const std::string& more) {
    const app::Plan plan =
        app::parse_plan(text_of(job, false) + more, "job.toml", {}, {.needs_files = false});
    return models::parameters_text(plan.model);
  };
  CHECK(text("") == "268.46 M parameters");
  CHECK(text("lora.rank = 8\nlora.targets = ['*.q', '*.v']\n") ==
        "268.85 M parameters, of which 0.39 M learn");  // 12 layers x 2 targets x 8 x 2,048
}

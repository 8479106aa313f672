// pptrain eval
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/commands/launched_world.h"
#include "app/plan/load_plan.h"
#include "app/train/evaluator.h"
#include "app/train/inspection.h"
#include "app/train/rank_model.h"
#include "app/train/run_context.h"
#include "app/train/weights_source.h"

namespace pptrain::app {

namespace {

using Clock = std::chrono::steady_clock;

struct Result {
  std::string weights;  // where they are from
  std::string source;   // what was read
  double loss = 0;      // nats per token
  int64_t tokens = 0;
  double seconds = 0;
  std::optional<double> bytes;  // that the tokens stand for

  double perplexity() const { return std::exp(loss); }
  std::optional<double> bits_per_byte() const {
    if (!bytes) return std::nullopt;
    return loss * static_cast<double>(tokens) / *bytes / std::numbers::ln2;
  }
};

std::string source_of(const config::JobConfig& job) {
  return job.data.val_path.empty()
             ? fmt::format("{} (the last {} of it)", job.data.path, job.data.val_fraction)
             : job.data.val_path;
}

void print_json(const Result& result) {
  nlohmann::ordered_json sums = {{"loss", result.loss}, {"perplexity", result.perplexity()}};
  if (const auto bits = result.bits_per_byte()) sums["bits_per_byte"] = *bits;
  sums["tokens"] = result.tokens;
  nlohmann::ordered_json source = {{"source", result.source}};
  source.update(sums);
  nlohmann::ordered_json all = {{"weights", result.weights}};
  all.update(sums);
  all["time_s"] = result.seconds;
  all["sources"] = {source};
  fmt::print("{}\n", all.dump());
}

void print_text(const Result& result) {
  const auto bits = result.bits_per_byte();
  fmt::print("weights        {}\ndata           {}\n", result.weights, result.source);
  fmt::print("loss           {:.4f} nats per token\nperplexity     {:.4f}\n", result.loss,
             result.perplexity());
  if (bits) fmt::print("bits per byte  {:.4f}\n", *bits);
  fmt::print("tokens         {}\ntime           {:.1f} s\n", result.tokens, result.seconds);
}

int eval_rank(RunContext& context, const EvalArguments& arguments) {
  RankModel model(context, Purpose::evaluate);
  Result result{.weights = load_weights(context, model, arguments.checkpoint),
                .source = source_of(context.job),
                .bytes = {}};
  Evaluator evaluator(context, model);
  const auto begin = Clock::now();
  const pipeline::LossSum sum = evaluator.run();
  result.tokens = sum.tokens;
  result.loss = sum.loss / static_cast<double>(std::max<int64_t>(sum.tokens, 1));
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (context.job.data.format == "text") result.bytes = static_cast<double>(sum.tokens);
  if (!context.root()) return 0;
  if (arguments.json) {
    print_json(result);
  } else {
    print_text(result);
  }
  return 0;
}

}  // namespace

CLI::App* add_eval(CLI::App& cli, EvalArguments& arguments) {
  CLI::App* eval = cli.add_subcommand("eval", "Loss of a model on the job's validation data, forward only");
  add_job_options(*eval, arguments);
  add_checkpoint(*eval, arguments.checkpoint);
  eval->add_option("--batches", arguments.batches,
                   "Batches, each of as many samples as a training step, over eval.batches; 0: all")
      ->option_text("N")
      ->check(CLI::NonNegativeNumber);
  eval->add_flag("--json", arguments.json, "One object of JSON");
  return eval;
}

// The job is one that validates, whatever its own eval.interval.
int eval(const EvalArguments& arguments) {
  const auto load = [&] {
    log_to_stderr();
    std::vector<std::string> overrides = arguments.set;
    overrides.emplace_back("eval.interval=1");
    for (std::string& text : hf_overrides(arguments.checkpoint)) overrides.push_back(std::move(text));
    Plan plan =
        load_plan(arguments.config, overrides, {.world = world_of(arguments), .inspect = inspect_data});
    if (arguments.batches >= 0) plan.job.eval.batches = arguments.batches;
    return plan;
  };
  return run_ranks(load, [&](RunContext& context) { return eval_rank(context, arguments); });
}

}  // namespace pptrain::app

#include "app/forecast/step_costs.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "app/data/datasets.h"
#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/io/checksum.h"
#include "parallel/schedule/action.h"

namespace pptrain::app {

namespace {

using schedule::SizedCost;

// The plan's costs with microbatches of so many rows of so many tokens.
schedule::Costs costs_of(const Plan& plan, const CostSource& source, int64_t rows, int64_t tokens) {
  PlanBase base = plan;
  base.job.train.micro_batch_size = rows;
  base.job.train.seq_len = tokens;
  return simulation_costs(CostModel(base, source), plan.layers, plan.schedule);
}

// Rows of about half as many tokens that ranks can shard as they do whole ones.
int64_t half_row(const Plan& plan) {
  const data::LoaderOptions options = loader_options(plan);
  const int64_t unit = 2 * options.parts();
  const int64_t row = options.seq_len;
  return std::min(row, std::max<int64_t>(1, row / 2 / unit) * unit);
}

// So many in a second that the passes of all stages, one after another, fit into 64 bits twice.
double ticks_for(const Plan& plan, const schedule::Costs& one_row) {
  constexpr double femtoseconds = 1e15, most = 2e18;
  double seconds = 0;
  for (const schedule::StageCost& stage : one_row.stages) {
    const auto& time = stage.time;
    seconds += time.forward + std::max(time.backward, time.backward_input + time.backward_weight) +
               time.head_forward + time.head_backward;
  }
  seconds *= static_cast<double>(plan.schedule.microbatches * plan.job.train.micro_batch_size);
  return std::min(femtoseconds, most / seconds);
}

// Fits the seconds of one row, of two, and of one of `half` tokens.
SizedCost fitted(double one, double two, double shorter, int64_t row, int64_t half, double ticks) {
  const double fixed = std::max(0.0, 2 * one - two);
  const double whole_token = (one - fixed) / static_cast<double>(row);
  const double half_token = (shorter - fixed) / static_cast<double>(half);
  const double square =
      row == half ? 0 : std::max(0.0, (whole_token - half_token) / static_cast<double>(row - half));
  return {.fixed = std::llround(fixed * ticks),
          .token = std::llround((whole_token - square * static_cast<double>(row)) * ticks),
          .square = std::llround(square * ticks)};
}

// Token files only: a forecast does not tokenize text.
std::optional<std::vector<OpenSource>> readable_data(const Plan& plan) {
  for (const StreamFiles& stream : streams_of(plan.job, Wanted::training)) {
    if (config::is_tokenized(plan.job, stream.options)) return std::nullopt;
  }
  try {
    return open_data(plan.job, plan.model.vocab, {}, Wanted::training);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool data_ranks_in_step(const PlanBase& base) {
  const schedule::ShardOptions shard = lower_options(base);
  return seen_by_passes(base.mesh).dp_shard > 1 || shard.gather == schedule::Gather::streamed ||
         shard.reduce == schedule::Reduce::microbatch;
}

schedule::SizedCosts balance_costs(const Plan& plan) {
  const std::string& named = plan.job.distributed.pp_costs;
  const CostSource source = make_cost_source(plan, named.ends_with(".json") ? "" : named);
  const int64_t row = plan.job.train.seq_len, half = half_row(plan);
  const schedule::Costs one = costs_of(plan, source, 1, row), two = costs_of(plan, source, 2, row),
                        shorter = costs_of(plan, source, 1, half);
  schedule::SizedCosts costs;
  const double ticks = ticks_for(plan, one);
  const auto fit = [&](const auto& seconds) {
    return fitted(seconds(one), seconds(two), seconds(shorter), row, half, ticks);
  };
  for (size_t stage = 0; stage < one.stages.size(); ++stage) {
    schedule::StageSizedCosts& own = costs.emplace_back();
    own.passes = schedule::PerPass<SizedCost>::each([&](schedule::ActionKind pass) {
      return fit([&](const schedule::Costs& of) { return of.stages[stage].time.of(pass); });
    });
    if (stage + 1 < one.stages.size())
      own.transfer = fit([&](const schedule::Costs& of) { return of.latency[stage]; });
    own.head_transfer = fit([&](const schedule::Costs& of) { return of.head_latency; });
  }
  return costs;
}

std::string fingerprint(const schedule::SizedCosts& costs) {
  io::Checksum all;
  all.add(std::as_bytes(std::span(costs)));
  return all.hex();
}

void balance_schedule(const Plan& plan, data::LoaderOptions& options) {
  options.step_end = schedule::step_clock(plan.schedule, balance_costs(plan));
  options.in_step = data_ranks_in_step(plan);
  options.balance_schedule = true;
}

std::optional<std::pair<double, double>> forecast_lengths(const Plan& plan, const Prediction& full) {
  if (plan.job.data.lengths != config::Lengths::exact) return std::nullopt;
  const auto sources = readable_data(plan);
  if (!sources) return std::nullopt;
  constexpr int64_t steps = forecast_steps;
  data::LoaderOptions options = loader_options(plan);
  balance_schedule(plan, options);
  const std::vector<int64_t> tokens(static_cast<size_t>(options.microbatches),
                                    options.micro_batch_size * options.seq_len);
  std::vector<int64_t> squares = tokens;
  for (int64_t& square : squares) square *= options.seq_len;
  const auto whole = static_cast<double>(options.step_end(tokens, squares));
  const auto mean = [&](bool by_schedule) {
    options.balance_schedule = by_schedule;
    const data::DataLoader loader(training_streams(*sources), options, plan.job.data.shuffle,
                                  static_cast<uint64_t>(plan.job.run.seed));
    double pipeline = 0;  // fraction of the full microbatches' pipeline
    for (int64_t step = 0, next = 0; step < steps; ++step) {
      const data::Step taken = loader.step(next);
      next += taken.samples;
      pipeline += static_cast<double>(taken.end) / whole / steps;
    }
    return full.step_time - full.pipeline.step_time * (1 - pipeline);
  };
  return std::pair(mean(false), mean(true));
}

}  // namespace pptrain::app

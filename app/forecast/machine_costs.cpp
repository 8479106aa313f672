#include "app/forecast/costs.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "app/plan/plan.h"
#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/data/microbatch.h"
#include "core/metrics/peak_flops.h"
#include "core/optim/optimizer.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t most_tokens = 2048;            // of the microbatches that are timed
constexpr int64_t most_parameters = 60'000'000;  // of all that a rank holds meanwhile
constexpr double longest_pass = 0.25;            // s of a block's forward and backward, as modelled
constexpr double time_of_passes = 0.25;          // s for each way of running through a stage
constexpr unsigned most_ranks = 16;              // at once

// The job to time: its microbatch or a part of it, on a rank that has whole layers.
PlanBase timed_base(const PlanBase& base) {
  PlanBase timed = on_mesh(base, {});
  timed.job.distributed.pp_sequence_slices = 1;
  config::TrainSection& train = timed.job.train;
  train.recompute = config::Recompute::none;
  train.seq_len = std::min(train.seq_len, most_tokens);
  train.micro_batch_size = std::clamp(most_tokens / train.seq_len, int64_t{1}, train.micro_batch_size);
  return timed;
}

// A layer of each kind, and one with the head.
std::vector<models::StageSlice> timed_slices(const models::ModelConfig& model) {
  std::vector<models::StageSlice> slices;
  const auto add = [&](int layer, bool head) {
    slices.push_back({.index = static_cast<int>(slices.size()),
                      .first_layer = layer,
                      .end_layer = layer + 1,
                      .embedding = false,
                      .head = head});
  };
  add(0, false);
  for (int layer = 1; layer < model.layers; ++layer) {
    if (model.sparse.contains(layer) == model.sparse.contains(0) && model.kind(layer) == model.kind(0))
      continue;
    add(layer, false);
    break;
  }
  add(0, true);
  return slices;
}

data::Microbatch random_microbatch(const PlanBase& base) {
  const int64_t vocab = base.model.vocab, documents = base.job.train.micro_batch_size;
  const int64_t length = base.job.train.seq_len, tokens = documents * length;
  return {.tokens = at::randint(vocab, {tokens}, at::kLong),
          .labels = at::randint(vocab, {tokens}, at::kLong),
          .positions = at::arange(length, at::kInt).repeat({documents}),
          .segments = tokens::equal_segments(documents, length, at::kCPU),
          .targets = tokens,
          .global_tokens = tokens,
          .global_targets = tokens};
}

// One rank's stages, and its times.
class RankTimer {
 public:
  RankTimer(const PlanBase& base, std::span<const models::StageSlice> slices)
      : data_(random_microbatch(base)) {
    std::vector<nn::Buffer*> buffers;
    for (const models::StageSlice& slice : slices) {
      auto& stage = *stages_.emplace_back(std::make_unique<models::TransformerStage>(base.model, slice));
      stage.materialise(at::kCPU, base.job.train.dtype == config::Dtype::bf16 ? at::kBFloat16 : at::kFloat);
      stage.parameters().initialise(0);
      for (nn::Buffer* buffer : stage.parameters().buffers())
        if (!buffer->frozen) buffers.push_back(buffer);
    }
    // The job's groups may match none of these parameters.
    config::OptimizerSection options = base.job.optimizer;
    options.groups.clear();
    optimizer_ = optim::make_optimizer(options, buffers);
    if (options.post_validation) optimizer_->keep_previous();
  }

  Measurement run(std::barrier<>& together) {
    Measurement result;
    for (const auto& stage : stages_) {
      together.arrive_and_wait();
      result.stages.push_back(time(*stage));
    }
    together.arrive_and_wait();
    std::vector<double> steps;
    for (const auto begin = Clock::now(); steps.size() < 4 || seconds_since(begin) < time_of_passes / 4;) {
      const auto start = Clock::now();
      optimizer_->step(1e-6, 1);
      steps.push_back(seconds_since(start));
    }
    result.optimizer = median(steps);
    return result;
  }

 private:
  MeasuredStage time(models::TransformerStage& stage) {
    std::vector<double> forward, backward, input, weight;
    at::Tensor x =
        at::randn({data_.token_count(), stage.model().hidden}).to(stage.parameters().compute_dtype());
    const auto timed = [](std::vector<double>& times, const auto& pass) {
      const auto start = Clock::now();
      pass();
      times.push_back(seconds_since(start));
    };
    const auto gradient = [&] { return stage.is_last() ? at::Tensor() : x.clone(); };
    const auto repeat = [&](const auto& passes) {
      passes();  // the first time is not typical
      forward.clear(), backward.clear(), input.clear(), weight.clear();
      for (const auto begin = Clock::now(); forward.size() < 3 || seconds_since(begin) < time_of_passes;)
        passes();
    };
    const auto pass_forward = [&] {
      at::Tensor own = x.clone();
      timed(forward, [&] { stage.forward(0, data_, std::move(own)); });
    };
    repeat([&] {
      pass_forward();
      at::Tensor dy = gradient();
      timed(backward, [&] { stage.backward(0, std::move(dy)); });
    });
    const double joint = median(backward);
    repeat([&] {
      pass_forward();
      at::Tensor dy = gradient();
      timed(input, [&] { stage.backward_input(0, std::move(dy)); });
      timed(weight, [&] { stage.backward_weight(0); });
    });
    stage.take_loss();
    return {.slice = stage.slice(),
            .seconds = {.forward = median(forward),
                        .backward = joint,
                        .backward_input = median(input),
                        .backward_weight = median(weight)}};
  }

  data::Microbatch data_;
  std::vector<std::unique_ptr<models::TransformerStage>> stages_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

struct Measured {
  Measurement passes;
  double product_flops = 0;
};

// The mean over `ranks` that run at the same time; for GEMMs the fastest.
Measured measure(const PlanBase& base, std::span<const models::StageSlice> slices, unsigned ranks) {
  std::vector<Measured> results(ranks);
  std::barrier together(static_cast<std::ptrdiff_t>(ranks));
  std::mutex mutex;
  std::exception_ptr failure;
  bool incomplete = false;  // a rank has no timer: none runs
  const auto body = [&](unsigned rank) {
    const c10::InferenceMode inference;
    at::set_num_threads(static_cast<int>(base.job.run.threads));
    std::unique_ptr<RankTimer> timer;
    try {
      timer = std::make_unique<RankTimer>(base, slices);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      incomplete = true;
    }
    together.arrive_and_wait();
    if (incomplete) return;  // set before all arrived
    try {
      results[rank].product_flops =
          metrics::peak_flops(at::kCPU, base.job.train.dtype == config::Dtype::bf16);
      results[rank].passes = timer->run(together);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
      together.arrive_and_drop();
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  threads.clear();
  if (failure) std::rethrow_exception(failure);
  Measured mean{.passes = results.front().passes};
  const auto average = [&](const auto& of) {
    double sum = 0;
    for (const Measured& one : results) sum += of(one);
    return sum / ranks;
  };
  mean.product_flops = std::ranges::max(results, {}, &Measured::product_flops).product_flops;
  mean.passes.optimizer = average([](const Measured& one) { return one.passes.optimizer; });
  for (size_t i = 0; i < slices.size(); ++i) {
    mean.passes.stages[i].seconds = schedule::PerPass<double>::each([&](schedule::ActionKind pass) {
      return average([&](const Measured& one) { return one.passes.stages[i].seconds.of(pass); });
    });
  }
  return mean;
}

// Why passes of these sizes are not run here; empty if they are.
std::string too_long(const CostModel& costs, std::span<const models::StageSlice> slices) {
  int64_t parameters = 0;
  double longest = 0;
  for (const models::StageSlice& slice : slices) {
    parameters += costs.footprint(slice).parameters;
    const auto time = costs.stage(slice).time;
    longest = std::max(longest, time.forward + time.backward);
  }
  if (parameters > most_parameters) return "its blocks are too large to measure here";
  return longest > longest_pass * 4 ? "its passes are too long to measure here" : "";
}

}  // namespace

CostSource measure_machine(const PlanBase& base) {
  if (base.job.run.device != config::Device::cpu)
    throw UsageError(
        "--costs measured is of this machine's CPU, but run.device is \"cuda\": name the GPU, or give a "
        "run's trace");
  const auto start = Clock::now();
  CostSource source = make_cost_source(base, "cpu");
  PlanBase timed = timed_base(base);
  const std::vector<models::StageSlice> slices = timed_slices(base.model);
  std::string reason = too_long({timed, source}, slices);
  for (config::TrainSection& train = timed.job.train;
       !reason.empty() && train.micro_batch_size * train.seq_len > 256;) {
    if (train.micro_batch_size > 1) {
      train.micro_batch_size = (train.micro_batch_size + 1) / 2;
    } else {
      train.seq_len /= 2;
    }
    reason = too_long({timed, source}, slices);
  }
  if (!reason.empty()) {
    source.description += " (" + reason + ")";
    return source;
  }
  const auto ranks = static_cast<unsigned>(std::clamp<int64_t>(
      base.mesh.world_size(), 1, std::clamp<int64_t>(core_count() / base.job.run.threads, 1, most_ranks)));
  const Measured measured = measure(timed, slices, ranks);
  source.calibration = calibrate(timed, source.device, measured.passes);
  source.product_flops = measured.product_flops;
  source.description = fmt::format("measured on this machine in {:.1f} s, {} rank{} at once",
                                   seconds_since(start), ranks, ranks == 1 ? "" : "s");
  return source;
}

}  // namespace pptrain::app

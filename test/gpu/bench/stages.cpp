// Stages of a pipeline with pp 8: forward and backward passes of microbatches in the order of a 1F1B rank.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/flops.h"
#include "models/transformer_stage.h"
#include "test/gpu/bench/host_waits.h"
#include "test/gpu/bench/profile.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

using at::Tensor;
using config::Recompute;
using models::TransformerStage;

constexpr int kLayers = 32;

// One of 8 stages. A split by cost gives the last one fewer blocks, since the head costs more than two.
struct Place {
  const char* name;
  models::StageSlice slice;
  int in_flight;  // microbatches between forward and backward under 1F1B

  int blocks() const { return slice.end_layer - slice.first_layer; }
};
constexpr std::array kPlaces = {
    Place{"first", {.index = 0, .first_layer = 0, .end_layer = 4, .embedding = true, .head = false}, 8},
    Place{"middle", {.index = 4, .first_layer = 16, .end_layer = 20, .embedding = false, .head = false}, 4},
    Place{"last", {.index = 7, .first_layer = 30, .end_layer = 32, .embedding = false, .head = true}, 1}};

// Useful operations per token in the stage: the operations of a model with the stage's blocks, without the
// head if the stage has none.
double stage_flops_per_token(const Sizes& sizes, const Place& place, int64_t sequence) {
  const double whole = models::flops_per_token(sizes.model(place.blocks()), sequence);
  return place.slice.head ? whole : whole - 6 * static_cast<double>(sizes.vocab * sizes.hidden);
}

// The passes of one stage, on alternating random tokens, inputs and gradients.
class StageRun {
 public:
  StageRun(const Bench& bench, TransformerStage& stage, int64_t sequence) : stage_(stage) {
    constexpr int kTurns = 3;
    for (int i = 0; i < kTurns; ++i) {
      microbatches_.push_back(microbatch(bench, sequence));
      const int64_t hidden = bench.sizes().hidden;
      if (!stage.is_first()) inputs_.push_back(bench.random({sequence, hidden}, at::kBFloat16));
      if (!stage.is_last()) gradients_.push_back(bench.random({sequence, hidden}, at::kBFloat16, 1e-3));
    }
  }

  void forward(int i) {
    stage_.forward(i, turn(microbatches_, i), inputs_.empty() ? Tensor() : turn(inputs_, i));
  }
  void backward(int i) { stage_.backward(i, gradient(i)); }
  void backward_input(int i) { stage_.backward_input(i, gradient(i)); }
  void backward_weight(int i) { stage_.backward_weight(i); }

 private:
  template <class T>
  static const T& turn(const std::vector<T>& values, int i) {
    return values[static_cast<size_t>(i) % values.size()];
  }
  Tensor gradient(int i) const { return gradients_.empty() ? Tensor() : turn(gradients_, i); }

  static data::Microbatch microbatch(const Bench& bench, int64_t sequence) {
    const int64_t vocab = bench.sizes().vocab;
    const auto ints = at::TensorOptions().dtype(at::kInt).device(bench.device());
    return {.tokens = bench.random_integers(vocab, sequence),
            .labels = bench.random_integers(vocab, sequence),
            .positions = at::arange(sequence, ints),
            .segments = tokens::equal_segments(1, sequence, bench.device()),
            .targets = sequence,
            .global_tokens = sequence,
            .global_targets = sequence};
  }

  TransformerStage& stage_;
  std::vector<data::Microbatch> microbatches_;
  std::vector<Tensor> inputs_, gradients_;
};

// Device seconds of each pass, by its kind.
struct PassTimes {
  std::vector<double> forward, backward, input, weight;
  double total = 0;
};

// Runs `count` microbatches as a 1F1B rank does: `in_flight` forward passes ahead, then in turns. With
// `split`, the backward pass is I and then W.
PassTimes run_1f1b(Bench& bench, StageRun& run, int count, int in_flight, bool split) {
  PassTimes times;
  std::vector<std::vector<double>*> order;
  const std::vector<double> seconds = bench.intervals([&](pipeline::TimeMarks& marks) {
    const auto pass = [&](std::vector<double>& kind, auto&& body) {
      body();
      marks.mark();
      order.push_back(&kind);
    };
    marks.mark();
    for (int i = 0; i < count + in_flight - 1; ++i) {
      if (i < count) pass(times.forward, [&] { run.forward(i); });
      const int back = i - in_flight + 1;
      if (back < 0) continue;
      if (split) {
        pass(times.input, [&] { run.backward_input(back); });
        pass(times.weight, [&] { run.backward_weight(back); });
      } else {
        pass(times.backward, [&] { run.backward(back); });
      }
    }
  });
  for (size_t i = 0; i < order.size(); ++i) {
    order[i]->push_back(seconds[i]);
    times.total += seconds[i];
  }
  return times;
}

// Host seconds to queue one microbatch's passes on an idle device.
double queueing_seconds(Bench& bench, StageRun& run, bool split) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    bench.synchronise();
    const auto start = std::chrono::steady_clock::now();
    run.forward(i);
    if (split) {
      run.backward_input(i);
      run.backward_weight(i);
    } else {
      run.backward(i);
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return median(std::move(seconds));
}

void put(Json& row, const char* key, const std::vector<double>& seconds) {
  if (!seconds.empty()) row[key] = median(seconds);
}

void measure_stage(Bench& bench, Json& row, TransformerStage& stage, const Place& place, int64_t sequence,
                   bool split) {
  StageRun run(bench, stage, sequence);
  run_1f1b(bench, run, 2, 1, split);
  const double estimate = run_1f1b(bench, run, 2, 1, split).total / 2;
  const double seconds = bench.small() ? 0.05 : 1.5;
  const int count = place.in_flight + std::clamp(static_cast<int>(seconds / estimate), 2, 400);
  stage.take_loss();
  bench.reset_memory();
  run_1f1b(bench, run, place.in_flight, place.in_flight, split);  // allocates memory for everything in flight
  stage.take_loss();
  const PassTimes times = run_1f1b(bench, run, count, place.in_flight, split);
  row["peak_bytes"] = bench.peak_memory_bytes();
  const double tokens = static_cast<double>(count) * static_cast<double>(sequence);
  if (stage.is_last()) row["loss"] = stage.take_loss() / tokens;
  const double flops = stage_flops_per_token(bench.sizes(), place, sequence);
  row["microbatches"] = count;
  row["total_s"] = times.total;
  row["microbatch_s"] = times.total / count;
  put(row, "forward_s", times.forward);
  put(row, "backward_s", times.backward);
  put(row, "input_s", times.input);
  put(row, "weight_s", times.weight);
  row["tokens_per_s"] = tokens / times.total;
  row["flops_per_token"] = flops;
  row["flops_per_s"] = tokens / times.total * flops;
  if (bench.peak_flops() > 0) row["mfu"] = tokens / times.total * flops / bench.peak_flops();
  row["host_s"] = queueing_seconds(bench, run, split);
  const auto waits = count_host_waits([&] {
    run.forward(0);
    run.backward(0);
  });
  if (waits) row["host_syncs"] = *waits;
}

// The kind of attention by train.deterministic, with the parallelism of its stages, and whether linear layers
// multiply in FP8. Only one mode measures I and W apart.
struct Mode {
  const char* name;
  models::StageParallelism parallelism;
  bool split, fp8;
};

std::vector<Mode> modes() {
  models::StageParallelism deterministic, fastest;
  deterministic.attention = attention::make_local_attention(/*deterministic=*/true);
  fastest.attention = attention::make_local_attention(/*deterministic=*/false);
  return {{.name = "deterministic", .parallelism = deterministic, .split = true, .fp8 = false},
          {.name = "fastest", .parallelism = fastest, .split = false, .fp8 = false},
          {.name = "deterministic, fp8", .parallelism = deterministic, .split = false, .fp8 = true}};
}

std::unique_ptr<TransformerStage> make_stage(const Bench& bench, const Place& place, Recompute recompute,
                                             const Mode& mode) {
  models::ModelConfig model = bench.sizes().model(kLayers);
  model.fp8 = mode.fp8;
  auto made = std::make_unique<TransformerStage>(model, place.slice, mode.parallelism);
  made->recompute_by_microbatch({recompute});
  made->materialise(bench.device(), at::kBFloat16);
  made->parameters().initialise(/*seed=*/1);
  return made;
}

void measure_place(Bench& bench, Rows& rows, const Place& place, Recompute recompute, const Mode& mode) {
  bench.reset_memory();
  std::unique_ptr<TransformerStage> stage;
  for (const int64_t sequence : bench.sizes().rows) {
    for (const bool split : {false, true}) {
      if (split && (recompute != Recompute::none || !mode.split)) continue;
      const Json names{{"name", place.name},
                       {"blocks", place.blocks()},
                       {"sequence", sequence},
                       {"recompute", to_string(recompute)},
                       {"backward", split ? "I + W" : "B"},
                       {"attention", mode.name},
                       {"in_flight", place.in_flight}};
      rows.add(names, [&](Json& row) {
        if (!stage) stage = make_stage(bench, place, recompute, mode);
        stage->discard();
        measure_stage(bench, row, *stage, place, sequence, split);
      });
    }
  }
}

// The kernels of a stage's microbatches, B whole, in the first mode.
void profile_place(Bench& bench, Rows& rows, const Place& place) {
  constexpr int count = 4;
  constexpr double least = 1e-3;  // share of a kernel with a row of its own
  bench.reset_memory();
  const int64_t sequence = bench.sizes().rows.front();
  std::vector<ProfiledKernel> kernels;
  double total = 0;  // s
  const auto add = [&](const std::string& kernel, const std::function<void(Json&)>& fill) {
    rows.add({{"name", place.name}, {"sequence", sequence}, {"kernel", kernel}}, fill);
  };
  const auto put_kernel = [&](Json& row, const ProfiledKernel& kernel) {
    row["calls"] = kernel.calls / count;
    row["seconds"] = kernel.seconds / count;
    row["share"] = kernel.seconds / total;
  };
  add("all", [&](Json& row) {
    const auto stage = make_stage(bench, place, Recompute::none, modes().front());
    StageRun run(bench, *stage, sequence);
    run_1f1b(bench, run, 2, 1, /*split=*/false);
    kernels = profile(bench.device(), [&] { total = run_1f1b(bench, run, count, 1, /*split=*/false).total; });
    row["microbatch_s"] = total / count;
    ProfiledKernel all;
    for (const ProfiledKernel& kernel : kernels) {
      all.calls += kernel.calls;
      all.seconds += kernel.seconds;
    }
    put_kernel(row, all);
  });
  ProfiledKernel rest;
  for (const ProfiledKernel& kernel : kernels) {
    if (kernel.seconds >= least * total) {
      add(kernel.name, [&](Json& row) { put_kernel(row, kernel); });
    } else {
      rest.calls += kernel.calls;
      rest.seconds += kernel.seconds;
    }
  }
  if (rest.calls > 0) add("others", [&](Json& row) { put_kernel(row, rest); });
}

}  // namespace

void measure_profile(Bench& bench, Rows& rows) {
  for (const Place& place : kPlaces) profile_place(bench, rows, place);
}

void measure_stages(Bench& bench, Rows& rows) {
  for (const Mode& mode : modes())
    for (const Place& place : kPlaces)
      for (const Recompute recompute : {Recompute::none, Recompute::cheap})
        measure_place(bench, rows, place, recompute, mode);
}

}  // namespace pptrain::bench

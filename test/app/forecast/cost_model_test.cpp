// Predicted times of passes: bounded below by operations, and equal to measured times.
#include "app/forecast/cost_model.h"

#include <cmath>

#include "app/forecast/footprint.h"
#include "core/base/error.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using namespace pptrain::models;

namespace {

// The size of configs for one H100: GEMMs bound its passes.
ModelConfig large_model() {
  ModelConfig model;
  model.arch = "llama";
  model.layers = 8;
  model.hidden = 4096;
  model.intermediate = 14336;
  model.heads = 32;
  model.kv_heads = 8;
  model.head_dim = 128;
  model.vocab = 128256;
  model.max_seq = 4096;
  return model;
}

constexpr StageSlice first{.index = 0, .first_layer = 0, .end_layer = 5, .embedding = true, .head = false};
constexpr StageSlice last{.index = 1, .first_layer = 5, .end_layer = 8, .embedding = false, .head = true};

// One row a microbatch, on one rank.
PlanBase base_of(const ModelConfig& model = large_model(),
                 const config::Recomputation& recompute = config::Recompute::none) {
  PlanBase base{.job = {}, .model = model, .mesh = {}};
  base.job.train.seq_len = 4096;
  base.job.train.recompute = recompute;
  return base;
}

// Parameters sharded over four ranks: gathered for each pass and summed after each microbatch, or once a
// step.
PlanBase over_four_ranks(bool in_passes) {
  PlanBase base = on_mesh(base_of(), {.dp_shard = 4});
  base.job.distributed.reshard_after_forward = in_passes;
  base.job.distributed.reduce_gradients =
      in_passes ? config::ReduceGradients::microbatch : config::ReduceGradients::step;
  return base;
}

// The costs of a run whose blocks, head and optimizer take other times than modelled.
enum class Backward { joint, apart, both };

Measurement measurement(const CostModel& truth, Backward backward) {
  Measurement measured;
  for (const StageSlice& slice : {first, last}) {
    MeasuredStage stage{.slice = slice, .seconds = truth.stage(slice).time};
    if (backward == Backward::joint) stage.seconds.backward_input = stage.seconds.backward_weight = 0;
    if (backward == Backward::apart) stage.seconds.backward = 0;
    measured.stages.push_back(stage);
  }
  measured.optimizer = truth.optimizer(first).seconds + truth.optimizer(last).seconds;
  measured.overhead = truth.overhead();
  return measured;
}

void check_equal(const CostModel& a, const CostModel& b, const StageSlice& slice, Backward measured) {
  const auto x = a.stage(slice).time, y = b.stage(slice).time;
  CHECK(x.forward == Approx(y.forward).epsilon(1e-9));
  CHECK(x.backward == Approx(y.backward).epsilon(1e-9));
  if (measured == Backward::joint) return;
  CHECK(x.backward_input == Approx(y.backward_input).epsilon(1e-9));
  CHECK(x.backward_weight == Approx(y.backward_weight).epsilon(1e-9));
}

}  // namespace

TEST_CASE("a pass takes at least its operations, and not much more where products bound it") {
  const DeviceModel& device = find_device("H100");
  const CostModel costs(base_of(), {.device = device});
  for (const StageSlice& slice : {first, last}) {
    const auto time = costs.stage(slice).time;
    const auto& f = costs.footprint(slice).passes;
    for (const auto& [seconds, pass] : {std::pair<double, const PassFootprint&>(time.forward, f.forward),
                                        {time.backward_input, f.backward_input},
                                        {time.backward_weight, f.backward_weight}}) {
      const double operations = pass.cost.product_flops + pass.cost.attention_flops;
      CHECK(seconds > operations / device.bfloat16_flops);
      CHECK(seconds < 1.8 * operations / device.bfloat16_flops);
    }
    CHECK(time.backward == Approx(time.backward_input + time.backward_weight));
  }
  CHECK(costs.transfer(0, 0) ==  // two of NCCL's thread blocks move a message
        Approx(device.within_host.latency + 4096.0 * 4096 * 2 / (2 * device.block_bandwidth)));
  CHECK(costs.norm_exchange() == 0);
  CHECK(costs.exchange(first).gather == 0);
  CHECK(costs.exchange(first).reduce() == 0);
}

TEST_CASE("a head in small chunks costs a pass over its weight and gradient for each") {
  const ModelConfig model = large_model();
  const auto head = [&](at::DeviceType device) {
    return dry_run(model, last, {.length = 4096, .device = device}).passes.forward;
  };
  const double weights = 128256.0 * 4096;
  const auto chunks = [&](int64_t rows) { return std::ceil(4096.0 / static_cast<double>(rows)); };
  // A row of logits has 256,512 bytes. 16 MiB hold 65 rows, so whole tiles have 64; 1 GiB holds all 4,096.
  const double difference = head(at::kCPU).cost.bytes - head(at::kCUDA).cost.bytes;
  CHECK(difference == Approx((chunks(64) - 1) * weights * (2 + 2 + 8)));
  CHECK(head(at::kCPU).cost.product_flops == head(at::kCUDA).cost.product_flops);
  CHECK(head(at::kCUDA).workspace - head(at::kCPU).workspace == (4096 - 64) * 256512);
}

TEST_CASE("a plan for a GPU counts the head's chunks of a GPU: four equal ones of about 1 GiB") {
  PlanBase four = base_of();
  four.job.train.micro_batch_size = 4;  // 16,384 rows of logits; 1 GiB holds 4,185
  const CostModel costs(four, {.device = find_device("H100")});
  const PassFootprint& head = costs.footprint(last).passes.forward;
  CHECK(head.workspace > int64_t{4096} * 256512);
  StageSlice body = last;
  body.head = false;
  const kernels::Cost blocks = costs.footprint(body).passes.forward.cost;
  const double weights = 128256.0 * 4096;
  // Two GEMMs read the weight in each chunk.
  CHECK(head.cost.weight_bytes - blocks.weight_bytes == Approx(4 * 2 * weights * 2));
}

TEST_CASE("recompute repeats the blocks' forward in the backward") {
  const CostSource h200{.device = find_device("h200")};
  const CostModel plain(base_of(), h200), full(base_of(large_model(), config::Recompute::full), h200);
  StageSlice middle = first;
  middle.embedding = false;
  const auto a = plain.stage(middle).time, b = full.stage(middle).time;
  // The whole forward except the last GEMM: nothing reads its result.
  const kernels::Cost last_product{.product_flops = 2.0 * 5 * 4096 * 4096 * 14336};
  CHECK(b.backward_input > a.backward_input + 0.7 * a.forward);
  CHECK(b.backward_input < a.backward_input + a.forward);
  const auto flops = [&](const CostModel& costs) {
    return costs.footprint(middle).passes.backward_input.cost.product_flops;
  };
  CHECK(flops(full) == flops(plain) + plain.footprint(middle).passes.forward.cost.product_flops -
                           last_product.product_flops);
  CHECK(b.forward == a.forward);
  CHECK(b.backward_weight == a.backward_weight);
}

TEST_CASE("a pass takes at least its operations on every device, with FP8 or without") {
  for (const std::string_view name : device_names()) {
    CAPTURE(name);
    const DeviceModel& device = find_device(name);
    const CostModel costs(base_of(), {.device = device});
    CHECK(costs.stage(first).time.forward >
          costs.footprint(first).passes.forward.cost.product_flops / device.bfloat16_flops);
  }
}

TEST_CASE("FP8 counts its GEMMs, its rates and its copies of weights") {
  ModelConfig model = large_model();
  const CostSource h100{.device = find_device("H100")};
  const CostModel bf16(base_of(model), h100);
  model.fp8 = true;
  const CostModel fp8(base_of(model), h100);
  StageSlice middle = first;
  middle.embedding = false;
  const auto& a = bf16.footprint(middle).passes;
  const auto& b = fp8.footprint(middle).passes;
  CHECK(a.forward.cost.fp8_flops == 0);
  CHECK(b.forward.cost.product_flops == a.forward.cost.product_flops);
  CHECK(b.forward.cost.fp8_flops == b.forward.cost.product_flops);  // all GEMMs of blocks
  CHECK(b.backward_weight.cost.fp8_flops == 0);
  const auto before = bf16.stage(middle).time, after = fp8.stage(middle).time;
  CHECK(after.forward < 0.8 * before.forward);
  CHECK(after.forward > before.forward * (1 - h100.device.fp8_saving));
  CHECK(after.backward_weight == before.backward_weight);
  // Two copies of one byte an element, and scales.
  const int64_t copies = fp8.footprint(middle).weight_bytes - bf16.footprint(middle).weight_bytes;
  CHECK(static_cast<double>(copies) / (2.0 * static_cast<double>(bf16.footprint(middle).parameters)) ==
        Approx(1).epsilon(0.01));
  CHECK(fp8.optimizer(middle).seconds > bf16.optimizer(middle).seconds);
  CHECK_THROWS_WITH(CostModel(base_of(model), {.device = find_device("a100")}), contains_text("train.fp8"));

  // A CPU widens operands for the GEMM of bfloat16.
  const CostSource cpu{.device = find_device("cpu")};
  const CostModel slower(base_of(model), cpu);
  model.fp8 = false;
  CHECK(slower.stage(middle).time.forward > CostModel(base_of(model), cpu).stage(middle).time.forward);
}

TEST_CASE("each stage costs what its own recompute does") {
  const CostSource h200{.device = find_device("h200")};
  PlanBase base = base_of();
  base.job.train.recompute.words = {"full", "cheap"};
  const CostModel mixed(base, h200);
  for (int index = 0; index < 2; ++index) {
    const CostModel alone(base_of(large_model(), base.job.train.recompute.most(index)), h200);
    StageSlice slice = first;
    slice.index = index;
    CHECK(mixed.stage(slice).time.backward == alone.stage(slice).time.backward);
    CHECK(mixed.footprint(slice).activation == alone.footprint(slice).activation);
    CHECK(mixed.footprint(slice, Recompute::none).activation > alone.footprint(slice).activation);
  }
}

TEST_CASE("calibrated, the model gives back what was measured") {
  const DeviceModel& device = find_device("cpu");
  for (const Backward measured : {Backward::joint, Backward::apart, Backward::both}) {
    for (const auto recompute : {config::Recompute::none, config::Recompute::full}) {
      const PlanBase base = base_of(large_model(), recompute);
      // If I and W were not measured apart, they have one scale.
      const double of_weights = measured == Backward::joint ? 1.3 : 0.7;
      const CostModel truth(base, {.device = device,
                                   .calibration = {.forward = 0.8,
                                                   .backward_input = 1.3,
                                                   .backward_weight = of_weights,
                                                   .backward = measured == Backward::both ? 0.9 : 1,
                                                   .head = 1.7,
                                                   .optimizer = 3,
                                                   .overhead = 0.02}});
      const CostSource source{.device = device,
                              .calibration = calibrate(base, device, measurement(truth, measured))};
      const CostModel found(base, source);
      check_equal(found, truth, first, measured);
      check_equal(found, truth, last, measured);
      StageSlice other = first;
      other.end_layer = 2;  // a split that was not measured
      check_equal(found, truth, other, measured);
      CHECK(found.optimizer(other).seconds == Approx(truth.optimizer(other).seconds));
      CHECK(found.overhead() == 0.02);
      PlanBase keeping = base;
      keeping.job.optimizer.post_validation = true;  // the same machine, 46 bytes a parameter instead of 34
      const CostModel kept(keeping, source);
      CHECK(kept.optimizer(other).seconds == Approx(truth.optimizer(other).seconds * 46 / 34));
    }
  }
}

TEST_CASE("a device that copies itself exchanges within its passes, others do beside them") {
  const CostSource cpu{.device = find_device("cpu")};
  const CostModel alone(base_of(), cpu), shared(over_four_ranks(true), cpu);
  const StageExchange exchange = shared.exchange(first);
  CHECK(exchange.gather > 0);
  CHECK(shared.beside_passes(first).gather == 0);
  CHECK(shared.beside_passes(first).reduce == 0);
  const auto before = alone.stage(first).time, after = shared.stage(first).time;
  CHECK(after.forward == Approx(before.forward + exchange.gather));
  CHECK(after.backward_input == Approx(before.backward_input + exchange.gather));
  CHECK(after.backward_weight > before.backward_weight + exchange.reduce());
  CHECK(after.backward - before.backward == Approx(after.backward_input - before.backward_input +
                                                   after.backward_weight - before.backward_weight));

  const CostModel kept(over_four_ranks(false), cpu);
  CHECK(kept.stage(first).time.forward == before.forward);
  CHECK(kept.beside_passes(first).gather == kept.exchange(first).gather);

  const CostModel gpu(over_four_ranks(true), {.device = find_device("h100")});
  CHECK(gpu.within_passes(first).gather == 0);
  CHECK(gpu.beside_passes(first).gather == gpu.exchange(first).gather);
  CHECK(gpu.beside_passes(first).reduce == gpu.exchange(first).reduce());
}

TEST_CASE("weight gradients of adapters wait for the adapters' weights where each pass gathers its own") {
  const auto costs = [](bool reshard) {
    PlanBase base = over_four_ranks(true);
    base.job.distributed.reshard_after_forward = reshard;
    base.model.lora = {.rank = 16, .alpha = 16, .dropout = 0, .targets = {"*.q"}};
    return CostModel(base, {.device = find_device("cpu")});
  };
  const CostModel streamed = costs(true), kept = costs(false);
  const double gather = streamed.exchange(first).adapters;
  CHECK(gather > 0);
  CHECK(gather < streamed.exchange(first).gather / 10);
  CHECK(streamed.stage(first).time.backward_weight ==
        Approx(kept.stage(first).time.backward_weight + gather));
}

TEST_CASE("Muon's products are counted, each matrix once over the ranks that hold parts of it") {
  const DeviceModel& device = find_device("h100");
  constexpr StageSlice block{.index = 0, .first_layer = 1, .end_layer = 2, .embedding = false, .head = false};
  PlanBase base = base_of();
  const double parameters = 4096.0 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 2 * 4096;
  const double norms = 2 * 4096;
  CHECK(CostModel(base, {.device = device}).optimizer(block).held == 8 * parameters);

  base.job.optimizer.name = "muon";
  // Five iterations: x x^T, its square, and their sum times x, with m the short side.
  const auto products = [](double m, double n) { return 5 * (4 * m * m * n + 2 * m * m * m); };
  const double flops = 2 * products(4096, 4096) + 2 * products(1024, 4096) + 3 * products(4096, 14336);
  const double moved = 42 * (parameters - norms) + 34 * norms;
  const OptimizerCost alone = CostModel(base, {.device = device}).optimizer(block);
  CHECK(alone.held == 4 * (parameters - norms) + 8 * norms);
  CHECK(alone.seconds == Approx(flops / device.bfloat16_flops + moved / device.memory_bandwidth));
  CHECK(alone.workspace > 2 * 4096 * 14336);

  const OptimizerCost shared = CostModel(on_mesh(base, {.dp_shard = 4}), {.device = device}).optimizer(block);
  CHECK(shared.held == alone.held / 4);
  CHECK(shared.seconds >= alone.seconds / 4);
  CHECK(shared.seconds < alone.seconds / 3);
}

TEST_CASE("a measurement without stages or passes is refused, a device that does not exist too") {
  const DeviceModel& device = find_device("cpu");
  CHECK_THROWS_AS(calibrate(base_of(), device, {}), UsageError);
  CHECK_THROWS_AS(calibrate(base_of(), device, {.stages = {{.slice = first, .seconds = {.forward = 1}}}}),
                  UsageError);
  CHECK_THROWS_WITH(find_device("h300"), pptrain::test::contains_text("cpu, a100, h100, h200, b200"));
}

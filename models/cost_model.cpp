#include "models/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "models/flops.h"

namespace pptrain::models {
namespace {

constexpr int products_of_a_block =
    7;  // q, k, v as one counts once in weights; o, gate, up, down and attention's two
constexpr int kernels_of_a_block = 14;
// AdamW reads and writes master weight, two moments and gradient (which is zeroed), and writes the compute
// copy.
constexpr double optimizer_bytes = 34;
// Masters and moments once more, written past the caches.
constexpr double previous_bytes = 12;

int64_t layer_count(const StageSlice& slice) {
  return slice.end_layer - slice.first_layer;
}

// Measured and modelled seconds, summed over stages.
struct Sum {
  double measured = 0;
  double modelled = 0;
  void add(double of_run, double of_model) {
    measured += of_run;
    modelled += of_model;
  }
  bool any() const { return measured > 0 && modelled > 0; }
  double ratio() const { return any() ? measured / modelled : 1; }
};

}  // namespace

CostModel::CostModel(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                     const Calibration& calibration)
    : model_(model),
      workload_(workload),
      device_(device),
      calibration_(calibration),
      tokens_(static_cast<double>(workload.batch * workload.seq)),
      flops_(workload.bfloat16 ? device.bfloat16_flops : device.float32_flops),
      bandwidth_(device.memory_bandwidth) {
  if (device.name == "cpu") {
    flops_ *= static_cast<double>(workload.threads);
    bandwidth_ *= static_cast<double>(workload.threads);
  }
}

// A product reads its weights once a microbatch, whatever the number of tokens.
double CostModel::product(double flops, double weight_bytes) const {
  return std::max(flops / flops_, copy(weight_bytes));
}

CostModel::Passes CostModel::blocks(int64_t layers) const {
  const double width = workload_.bfloat16 ? 2 : 4;
  const auto weights = static_cast<double>(layer_matmul_parameters(model_));
  const double flops = 2 * weights * tokens_;
  const double attention = 2 * static_cast<double>(workload_.seq * model_.heads * model_.head_dim) * tokens_ /
                           (flops_ * device_.attention);
  const StageSlice one{.index = 0, .first_layer = 0, .end_layer = 1, .embedding = false, .head = false};
  // What the records keep is written in F and read in the backward; as much again passes between kernels.
  const auto kept =
      static_cast<double>(activation_bytes(model_, one, workload_.batch * workload_.seq, workload_.bfloat16));
  const double launches = kernels_of_a_block * device_.launch;
  Passes p;
  p.forward = product(flops, weights * width) + attention + copy(2 * kept) + launches;
  p.input = product(flops, weights * width) + 2.5 * attention + copy(3 * kept) + launches;
  // W adds into float32 main gradients: each is read and written once a microbatch.
  p.weight = product(flops, 0) + copy(8 * weights + kept) + products_of_a_block * device_.launch;
  // Selective: the norms' outputs and the product of gate and up, which are passes over memory alone.
  const double width_of_again = static_cast<double>(2 * model_.hidden + model_.intermediate) * width;
  const double again = workload_.recompute == Recompute::full        ? p.forward
                       : workload_.recompute == Recompute::selective ? copy(3 * width_of_again * tokens_)
                                                                     : 0;
  const auto n = static_cast<double>(layers);
  const double forward = n * p.forward * calibration_.forward;
  return {.forward = forward,
          .again = n * again * calibration_.forward,
          .input = n * p.input * calibration_.backward_input,
          .weight = n * p.weight * calibration_.backward_weight};
}

double CostModel::embedding_forward() const {
  return copy(2 * tokens_ * static_cast<double>(model_.hidden) * (workload_.bfloat16 ? 2 : 4)) +
         device_.launch;
}

double CostModel::embedding_weight() const {
  return copy(10 * tokens_ * static_cast<double>(model_.hidden)) + device_.launch;
}

// Logits, their gradient, and both products of the gradient: all in F.
double CostModel::head() const {
  const auto weights = static_cast<double>(head_matmul_parameters(model_));
  const double logits = tokens_ * static_cast<double>(model_.vocab) * (workload_.bfloat16 ? 2 : 4);
  return (product(6 * weights * tokens_, 0) + copy(8 * weights + 4 * logits) + 8 * device_.launch) *
         calibration_.head;
}

schedule::StageCost CostModel::stage(const StageSlice& slice) const {
  const Passes own = blocks(layer_count(slice));
  schedule::StageCost cost{
      .forward = own.forward, .backward_input = own.again + own.input, .backward_weight = own.weight};
  cost.backward = own.again + (own.input + own.weight) * calibration_.backward;
  if (slice.embedding) {
    cost.forward += embedding_forward();
    cost.backward_weight += embedding_weight();
    cost.backward += embedding_weight();
  }
  if (slice.head) cost.forward += head();
  return cost;
}

double CostModel::optimizer(int64_t parameters) const {
  const double bytes = optimizer_bytes + (workload_.keeps_previous ? previous_bytes : 0);
  return copy(bytes * static_cast<double>(parameters)) * calibration_.optimizer;
}

double CostModel::transfer() const {
  const int64_t bytes = boundary_bytes(model_, workload_.batch * workload_.seq, workload_.bfloat16);
  return device_.link_latency + static_cast<double>(bytes) / device_.link_bandwidth;
}

double CostModel::all_reduce(int64_t bytes, int64_t replicas) const {
  if (replicas <= 1) return 0;
  const auto n = static_cast<double>(replicas);
  return 2 * (n - 1) * (device_.link_latency + static_cast<double>(bytes) / n / device_.link_bandwidth);
}

double CostModel::exchange(int64_t ranks) const {
  return ranks > 1 ? 2 * std::ceil(std::log2(static_cast<double>(ranks))) * device_.link_latency : 0;
}

Calibration calibrate(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                      const Measurement& measured) {
  if (measured.stages.empty()) throw UsageError("the measurement has no stages");
  const CostModel plain(model, workload, device);
  const bool only_head = std::ranges::all_of(measured.stages, [](const auto& s) { return s.slice.head; });
  Calibration result;
  Sum forward;
  for (const MeasuredStage& s : measured.stages) {
    if (s.forward <= 0 || (s.backward <= 0 && s.backward_input <= 0))
      throw UsageError("the measurement has a stage without a forward or a backward");
    if (s.slice.head && !only_head) continue;
    const double embedding = s.slice.embedding ? plain.embedding_forward() : 0;
    forward.add(s.forward - embedding, plain.stage(s.slice).forward - embedding);
  }
  result.forward = forward.ratio();
  Sum input, weight, joint, head;
  for (const MeasuredStage& s : measured.stages) {
    const CostModel::Passes own = plain.blocks(layer_count(s.slice));
    const double again = own.again * result.forward;
    const double embedding = s.slice.embedding ? plain.embedding_forward() : 0;
    const double scatter = s.slice.embedding ? plain.embedding_weight() : 0;
    if (s.backward > 0) joint.add(s.backward - again - scatter, own.input + own.weight);
    if (s.backward_input > 0) input.add(s.backward_input - again, own.input);
    if (s.backward_weight > 0) weight.add(s.backward_weight - scatter, own.weight);
    // Never less than a tenth of the pass, should noise leave nothing.
    if (s.slice.head)
      head.add(std::max(s.forward - embedding - own.forward * result.forward, s.forward / 10), plain.head());
  }
  result.head = head.ratio();
  result.backward_input = input.any() ? input.ratio() : joint.ratio();
  result.backward_weight = weight.any() ? weight.ratio() : joint.ratio();
  if (joint.any() && input.any()) {
    Sum scaled;
    for (const MeasuredStage& s : measured.stages) {
      if (s.backward <= 0) continue;
      const CostModel::Passes own = plain.blocks(layer_count(s.slice));
      const double scatter = s.slice.embedding ? plain.embedding_weight() : 0;
      scaled.add(s.backward - own.again * result.forward - scatter,
                 own.input * result.backward_input + own.weight * result.backward_weight);
    }
    result.backward = scaled.ratio();
  }
  if (measured.optimizer > 0) result.optimizer = measured.optimizer / plain.optimizer(1);
  result.overhead = measured.overhead;
  return result;
}

}  // namespace pptrain::models

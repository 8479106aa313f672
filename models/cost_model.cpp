#include "models/cost_model.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace pptrain::models {
namespace {

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

std::map<Recompute, Footprints> footprints_of(const ModelConfig& model, BatchShape batch,
                                              const DeviceModel& device) {
  batch.device = device.name == "cpu" ? at::kCPU : at::kCUDA;
  std::map<Recompute, Footprints> result;
  for (const Recompute recompute : all_recomputes) {
    batch.recompute = recompute;
    result.emplace(recompute, Footprints(model, batch));
  }
  return result;
}

}  // namespace

CostModel::CostModel(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                     const Calibration& calibration)
    : workload_(workload),
      device_(device),
      calibration_(calibration),
      footprints_(footprints_of(model, workload.batch, device)),
      flops_(workload.batch.bfloat16 ? device.bfloat16_flops : device.float32_flops),
      bandwidth_(device.memory_bandwidth) {
  if (device.name == "cpu") {
    flops_ *= static_cast<double>(workload.threads);
    bandwidth_ *= static_cast<double>(workload.threads);
  }
}

double CostModel::seconds(const kernels::Cost& cost) const {
  const double products = std::max(cost.product_flops / flops_, cost.weight_bytes / bandwidth_);
  const double attention = cost.attention_flops / (flops_ * device_.attention);
  return products + attention + (cost.bytes - cost.weight_bytes) / bandwidth_ +
         static_cast<double>(cost.kernels) * device_.launch;
}

Recompute CostModel::recompute_of(const StageSlice& slice) const {
  return workload_.recompute.empty() ? workload_.batch.recompute
                                     : workload_.recompute.at(static_cast<size_t>(slice.index));
}

// Embedding and head are what a stage with them costs beyond one without.
CostModel::Parts CostModel::parts(const StageSlice& slice) const {
  const StageSlice blocks{.index = 0,
                          .first_layer = slice.first_layer,
                          .end_layer = slice.end_layer,
                          .embedding = false,
                          .head = false};
  const Footprints& kept = footprints_.at(Recompute::none);
  const StageFootprint& own = kept.of(blocks);
  Parts parts{.forward = seconds(own.forward.cost),
              .input = seconds(own.backward_input.cost),
              .weight = seconds(own.backward_weight.cost)};
  parts.again = seconds(footprint(blocks, recompute_of(slice)).backward_input.cost) - parts.input;
  if (slice.embedding) {
    StageSlice first = blocks;
    first.embedding = true;
    parts.embedding_forward = seconds(kept.of(first).forward.cost - own.forward.cost);
    parts.embedding_weight = seconds(kept.of(first).backward_weight.cost - own.backward_weight.cost);
  }
  if (slice.head) {
    StageSlice last = blocks;
    last.head = true;
    parts.head = seconds(kept.of(last).forward.cost - own.forward.cost);
  }
  return parts;
}

schedule::StageCost CostModel::stage(const StageSlice& slice) const {
  const Parts p = parts(slice);
  const double again = p.again * calibration_.forward;
  const double input = p.input * calibration_.backward_input;
  const double weight = p.weight * calibration_.backward_weight;
  return {.forward = p.embedding_forward + p.forward * calibration_.forward + p.head * calibration_.head,
          .backward_input = again + input,
          .backward_weight = weight + p.embedding_weight,
          .backward = again + (input + weight) * calibration_.backward + p.embedding_weight};
}

double CostModel::optimizer(int64_t parameters) const {
  return workload_.optimizer_bytes * static_cast<double>(parameters) / bandwidth_ * calibration_.optimizer;
}

double CostModel::transfer() const {
  const StageSlice any{.index = 0, .first_layer = 0, .end_layer = 1, .embedding = false, .head = false};
  return device_.link_latency +
         static_cast<double>(footprint(any, Recompute::none).boundary) / device_.link_bandwidth;
}

double CostModel::all_reduce(int64_t bytes, int64_t replicas) const {
  if (replicas <= 1) return 0;
  const auto n = static_cast<double>(replicas);
  return 2 * (n - 1) * (device_.link_latency + static_cast<double>(bytes) / n / device_.link_bandwidth);
}

double CostModel::exchange(int64_t ranks) const {
  return ranks > 1 ? 2 * std::ceil(std::log2(static_cast<double>(ranks))) * device_.link_latency : 0;
}

// Finds the scales one after the other: the blocks' forward, which what is recomputed takes too, then the
// rest.
class Calibrator {
 public:
  Calibrator(const CostModel& plain, const Measurement& measured) : measured_(measured) {
    for (const MeasuredStage& stage : measured.stages) parts_.push_back(plain.parts(stage.slice));
    if (measured.optimizer > 0) result_.optimizer = measured.optimizer / plain.optimizer(1);
    result_.overhead = measured.overhead;
  }

  Calibration run() {
    result_.forward = scale_of_forward();
    scale_backward();
    return result_;
  }

 private:
  using Parts = CostModel::Parts;

  // visit(measured stage, its modelled parts)
  template <typename Visit>
  void each(const Visit& visit) const {
    for (size_t i = 0; i < parts_.size(); ++i) visit(measured_.stages[i], parts_[i]);
  }

  // Of stages without the head, unless all have one.
  double scale_of_forward() const {
    const bool only_head = std::ranges::all_of(measured_.stages, [](const auto& s) { return s.slice.head; });
    Sum sum;
    each([&](const MeasuredStage& s, const Parts& p) {
      if (s.slice.head && !only_head) return;
      sum.add(s.forward - p.embedding_forward, p.forward + p.head);
    });
    return sum.ratio();
  }

  void scale_backward() {
    Sum input, weight, joint, head;
    each([&](const MeasuredStage& s, const Parts& p) {
      const double again = p.again * result_.forward;
      if (s.backward > 0) joint.add(s.backward - again - p.embedding_weight, p.input + p.weight);
      if (s.backward_input > 0) input.add(s.backward_input - again, p.input);
      if (s.backward_weight > 0) weight.add(s.backward_weight - p.embedding_weight, p.weight);
      // Never less than a tenth of the pass, should noise leave nothing.
      if (s.slice.head) {
        const double left = s.forward - p.embedding_forward - p.forward * result_.forward;
        head.add(std::max(left, s.forward / 10), p.head);
      }
    });
    result_.head = head.ratio();
    result_.backward_input = input.any() ? input.ratio() : joint.ratio();
    result_.backward_weight = weight.any() ? weight.ratio() : joint.ratio();
    if (joint.any() && input.any()) result_.backward = scale_of_joint_backward();
  }

  double scale_of_joint_backward() const {
    Sum sum;
    each([&](const MeasuredStage& s, const Parts& p) {
      if (s.backward <= 0) return;
      sum.add(s.backward - p.again * result_.forward - p.embedding_weight,
              p.input * result_.backward_input + p.weight * result_.backward_weight);
    });
    return sum.ratio();
  }

  const Measurement& measured_;
  std::vector<Parts> parts_;
  Calibration result_;
};

Calibration calibrate(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                      const Measurement& measured) {
  if (measured.stages.empty()) throw UsageError("the measurement has no stages");
  for (const MeasuredStage& s : measured.stages) {
    if (s.forward <= 0 || (s.backward <= 0 && s.backward_input <= 0))
      throw UsageError("the measurement has a stage without a forward or a backward");
  }
  return Calibrator(CostModel(model, workload, device), measured).run();
}

}  // namespace pptrain::models

// How long a stage's passes take: modelled from operations and bytes of a named device, or scaled to what a
// run measured.
#pragma once

#include <cstdint>
#include <vector>

#include "models/device_model.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::models {

// One microbatch of a job on one rank.
struct Workload {
  int64_t batch = 1;
  int64_t seq = 1;
  bool bfloat16 = true;
  int64_t threads = 1;  // CPU threads of a rank; products are taken to scale with them
  Recompute recompute = Recompute::none;
  bool keeps_previous = false;  // the optimizer keeps what it overwrites
};

// Mean seconds of a run's actions on one stage; 0 where the run had none of the kind.
struct MeasuredStage {
  StageSlice slice;
  double forward = 0;
  double backward = 0;  // B at once
  double backward_input = 0;
  double backward_weight = 0;
};

struct Measurement {
  std::vector<MeasuredStage> stages;
  double optimizer = 0;  // s per parameter of a rank; 0: not measured
  double overhead = 0;   // s a step besides the pipeline and the optimizer
};

// Measured over modelled, kind by kind.
struct Calibration {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward = 1;  // of B at once, over I + W so scaled
  double head = 1;
  double optimizer = 1;
  double overhead = 0;  // s a step
};

class CostModel {
 public:
  // A product takes its operations or its bytes, whichever is longer; everything else takes its bytes. All is
  // then scaled as the calibration says.
  CostModel(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
            const Calibration& calibration = {});

  schedule::StageCost stage(const StageSlice& slice) const;  // seconds
  double optimizer(int64_t parameters) const;                // seconds of one rank's step
  double transfer() const;                                   // seconds of one boundary tensor
  double all_reduce(int64_t bytes, int64_t replicas) const;  // seconds, around a ring
  double exchange(int64_t ranks) const;                      // seconds until all know what one knows
  double overhead() const { return calibration_.overhead; }  // seconds a step, on every rank

 private:
  friend Calibration calibrate(const ModelConfig&, const Workload&, const DeviceModel&, const Measurement&);
  struct Passes {
    double forward = 0;
    double again = 0;  // the forward that a recomputing backward repeats
    double input = 0;
    double weight = 0;
  };
  Passes blocks(int64_t layers) const;
  double embedding_forward() const;
  double embedding_weight() const;
  double head() const;
  double product(double flops, double weight_bytes) const;
  double copy(double bytes) const { return bytes / bandwidth_; }

  ModelConfig model_;
  Workload workload_;
  DeviceModel device_;
  Calibration calibration_;
  double tokens_;
  double flops_;  // rates of this rank
  double bandwidth_;
};

// Blocks are scaled to the measured stages without the head, and the head to what is left of the last
// stage's forward. Throws UsageError where the measurement has no stage, or one without forward or backward.
Calibration calibrate(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                      const Measurement& measured);

}  // namespace pptrain::models

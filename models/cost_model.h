// How long a stage's passes take: modelled from operations and bytes of a named device, or scaled to what a
// run measured.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "models/device_model.h"
#include "models/footprint.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::models {

// One microbatch of a job on one rank, and its optimizer.
struct Workload {
  BatchShape batch;
  std::vector<Recompute> recompute{};  // of each stage; none: batch.recompute serves all
  int64_t threads = 1;                 // CPU threads of a rank; products are taken to scale with them
  double optimizer_bytes = 0;          // that a step moves for each parameter
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
  // A pass takes its products' operations or the bytes of their weights, whichever is longer; then the bytes
  // of everything else, and its launches. All is then scaled as the calibration says.
  CostModel(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
            const Calibration& calibration = {});

  schedule::StageCost stage(const StageSlice& slice) const;  // seconds
  double optimizer(int64_t parameters) const;                // seconds of one rank's step
  double transfer() const;                                   // seconds of one boundary tensor
  double all_reduce(int64_t bytes, int64_t replicas) const;  // seconds, around a ring
  double exchange(int64_t ranks) const;                      // seconds until all know what one knows
  double overhead() const { return calibration_.overhead; }  // seconds a step, on every rank

  const StageFootprint& footprint(const StageSlice& slice) const {
    return footprint(slice, recompute_of(slice));
  }
  // Of the stage if it recomputed so much.
  const StageFootprint& footprint(const StageSlice& slice, Recompute recompute) const {
    return footprints_.at(recompute).of(slice);
  }

 private:
  friend class Calibrator;
  // Of a stage, in seconds that are not calibrated, by what a calibration scales.
  struct Parts {
    double forward = 0;  // of the blocks
    double again = 0;    // what the blocks' backward computes again
    double input = 0;
    double weight = 0;
    double embedding_forward = 0;
    double embedding_weight = 0;
    double head = 0;
  };
  Recompute recompute_of(const StageSlice& slice) const;
  Parts parts(const StageSlice& slice) const;
  double seconds(const kernels::Cost& cost) const;

  Workload workload_;
  DeviceModel device_;
  Calibration calibration_;
  std::map<Recompute, Footprints> footprints_;  // all of them
  double flops_;                                // rates of this rank
  double bandwidth_;
};

// Blocks are scaled to the measured stages without the head, and the head to what is left of the last
// stage's forward. Throws UsageError where the measurement has no stage, or one without forward or backward.
Calibration calibrate(const ModelConfig& model, const Workload& workload, const DeviceModel& device,
                      const Measurement& measured);

}  // namespace pptrain::models

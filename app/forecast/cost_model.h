// How long a stage's passes take: modelled from operations and bytes of a named device, or scaled to what a
// run measured.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/forecast/core_sharing.h"
#include "app/forecast/device_model.h"
#include "app/forecast/footprint.h"
#include "app/forecast/mesh_links.h"
#include "app/forecast/pass_time.h"
#include "app/forecast/sharding.h"
#include "app/plan/plan.h"
#include "models/model_config.h"
#include "models/stage_slice.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::app {

// The part of a mesh that a stage's passes depend on. The numbers of data ranks change neither bytes nor
// operations, so meshes that differ only in them have one shape.
mesh::MeshShape seen_by_passes(const mesh::MeshShape& mesh);

// Mean seconds of a run's passes on one stage; 0 if the run had none of the kind.
struct MeasuredStage {
  models::StageSlice slice;
  schedule::PerPass<double> seconds;
};

struct Measurement {
  std::vector<MeasuredStage> stages;
  double optimizer = 0;  // s a step, of all stages together; 0: not measured
  double overhead = 0;   // s a step besides the pipeline and the optimizer
};

// What the optimizer of one stage takes on one of the ranks that shard it.
struct OptimizerCost {
  double seconds = 0;
  int64_t held = 0;       // bytes of state between steps
  int64_t workspace = 0;  // bytes at most while it steps

  // Adds another stage of the rank, which is stepped after this one.
  OptimizerCost& operator+=(const OptimizerCost& other);
};

// Measured over modelled, kind by kind.
struct Calibration {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double backward = 1;  // of B at once, relative to I + W as scaled
  double head = 1;
  double optimizer = 1;
  double overhead = 0;  // s a step
};

// The source of costs: a device, by itself or scaled to what a run measured.
struct CostSource {
  DeviceModel device;
  Calibration calibration{};
  std::string description{};                           // "modelled for h100", "measured in runs/a/trace.json"
  std::optional<double> product_flops = std::nullopt;  // of a rank: the rate of large GEMMs, if measured
  bool from_trace = false;
  CoreSharing sharing{};  // predictions of steps count it; costs of passes assume a core for each thread
};

// Dry runs that the cost models of several layouts share. For one thread.
class FootprintCache {
 public:
  using Each = std::map<config::Recompute, Footprints>;

  explicit FootprintCache(const models::ModelConfig& model);
  // Sets the batch's attention length.
  std::shared_ptr<const Each> of(BatchShape batch);

 private:
  models::ModelConfig model_;
  int64_t attention_length_;
  std::vector<std::shared_ptr<const Each>> known_;
};

// What one stage of a job takes, in seconds and in bytes.
struct StageForecast {
  StagePasses passes;
  schedule::StageCost cost;       // passes with the exchanges within them
  StageExchange within;           // weights and gradients that a CPU exchanges within passes
  schedule::ExchangeCost beside;  // and exchanges overlapped with passes
  HeldBytes held;                 // between steps, and gathered and reduced in passes
  schedule::StageBytes bytes;     // of passes
  OptimizerCost optimizer;
  int64_t sum_scratch = 0;  // scratch bytes of a CPU rank's sums, in addition to their tensors
};

// The links of a job on this mesh.
std::shared_ptr<const MeshLinks> make_links(const PlanBase& base, const DeviceModel& device,
                                            const mesh::MeshShape& mesh);

// Costs of a job on one rank of its mesh: of one microbatch and of the optimizer. For one thread.
class CostModel {
 public:
  // A pass takes its GEMMs' operations or the bytes of their weights, whichever is longer; then the bytes of
  // everything else, and its launches. The calibration scales the sum. Exchanges are added: the rank waits
  // for all of them, with two exceptions. Keys and values that travel around a ring overlap with attention.
  // In B, tensor-parallel exchanges of one gradient overlap with computing the other.
  CostModel(const PlanBase& base, const CostSource& source);
  // The same with dry runs of `cache`, and with links of the job's mesh if the caller has them.
  CostModel(FootprintCache& cache, PlanBase base, const CostSource& source,
            std::shared_ptr<const MeshLinks> links = nullptr);

  // All costs of a stage, found once. Passes are those of a microbatch that recomputes most.
  const StageForecast& of(const models::StageSlice& slice) const { return of(slice, recompute_of(slice)); }
  const StageForecast& of(const models::StageSlice& slice, config::Recompute recompute) const;
  // The same for a stage of the job with these layers.
  const StageForecast& of(const pipeline::LayerAssignment& layers, int stage) const {
    return of(slice(layers, stage));
  }
  // Forecasts of a stage's microbatches: microbatch i has number i % size. They live as long as this.
  std::vector<const StageForecast*> of_microbatches(const pipeline::LayerAssignment& layers, int stage) const;
  // Do microbatches of a stage differ?
  bool by_microbatch() const { return base_.job.train.recompute.by_microbatch(); }
  models::StageSlice slice(const pipeline::LayerAssignment& layers, int stage) const {
    return slice_of(base_, layers, stage);
  }
  // Seconds until all ranks have the head's input, or until the last stage has all terms of its gradient.
  double head_transfer(int last) const;

  StagePasses passes(const models::StageSlice& slice) const { return passes(slice, recompute_of(slice)); }
  StagePasses passes(const models::StageSlice& slice, config::Recompute recompute) const;
  // Seconds: passes() plus within_passes().
  schedule::StageCost stage(const models::StageSlice& slice) const {
    return stage(slice, recompute_of(slice));
  }
  schedule::StageCost stage(const models::StageSlice& slice, config::Recompute recompute) const;
  // The part of a pass's waiting that another pass can hide. On a CPU only exchanges between hosts: within a
  // host processors copy.
  double wire(const PassTime& pass) const;
  // Time for the bytes read and written. Muon adds its GEMMs or the exchange of matrices, whichever is
  // longer.
  OptimizerCost optimizer(const models::StageSlice& slice) const;
  double boundary_bytes() const;
  double transfer(int from, int to) const;  // seconds of one boundary tensor
  // Seconds in which the first stage's rank sends others their shards of the embedding's gradient and gets
  // their weights, once a step; 0 if the embedding is not sharded.
  double embedding_exchange() const;
  StageExchange exchange(const models::StageSlice& slice) const;  // of weights and gradients
  // The part of exchange() within passes, which stage() counts; only on a CPU, which copies itself. Each pass
  // that reads streamed weights gathers them. All reductions after each microbatch are in `sum`, in the pass
  // before them.
  StageExchange within_passes(const models::StageSlice& slice) const;
  // The rest of exchange(), overlapped with passes.
  schedule::ExchangeCost beside_passes(const models::StageSlice& slice) const;
  double norm_exchange() const { return 2 * links_->world().broadcast(); }  // until all know the global norm
  double overhead() const { return calibration_.overhead; }                 // seconds a step, on every rank

  const StageFootprint& footprint(const models::StageSlice& slice) const {
    return footprint(slice, recompute_of(slice));
  }
  // The stage's footprint if it recomputed so much.
  const StageFootprint& footprint(const models::StageSlice& slice, config::Recompute recompute) const {
    return footprints_->at(recompute).of(slice);
  }
  // Bytes that the stage's passes hold, including gathered weights and gradients that are being reduced.
  schedule::StageBytes bytes(const models::StageSlice& slice, config::Recompute recompute) const;
  const PlanBase& base() const { return base_; }
  // The simulated pipeline on the cores that ranks share.
  schedule::Simulation on_cores(const schedule::Schedule& schedule, schedule::Simulation alone) const;
  // How many times longer simultaneous work of all ranks takes.
  double load() const { return sharing_.load(base_.mesh.world_size(), base_.job.run.threads); }
  const schedule::ShardOptions& shard() const { return shard_; }
  // The highest level of recompute of the stage's microbatches.
  config::Recompute recompute_of(const models::StageSlice& slice) const;

 private:
  friend class Calibrator;
  struct Parts;
  Parts parts(const models::StageSlice& slice, config::Recompute recompute) const;
  Parts mean_parts(const models::StageSlice& slice) const;  // over the job's microbatches
  PassTime exchange_of_backward(const StageFootprint& stage, const Parts& parts) const;
  PassTime time(const kernels::Cost& cost) const;
  int64_t sum_scratch(const models::StageSlice& slice) const;
  const BatchShape& batch() const { return footprints_->at(config::Recompute::none).batch(); }

  PlanBase base_;
  schedule::ShardOptions shard_;
  DeviceModel device_;
  Calibration calibration_;
  CoreSharing sharing_;
  std::shared_ptr<const MeshLinks> links_;
  std::shared_ptr<const FootprintCache::Each> footprints_;
  double flops_;  // rates of this rank
  double bandwidth_;
  mutable std::map<std::pair<Footprints::Kind, config::Recompute>, StageForecast> known_;
};

// Scales blocks to the measured stages without the head, and the head to the rest of the last stage's
// forward. `run`: the job that was measured. Throws UsageError if the measurement has no stage, or a stage
// without forward or backward.
Calibration calibrate(const PlanBase& run, const DeviceModel& device, const Measurement& measured);

}  // namespace pptrain::app

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
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/simulate.h"

namespace pptrain::app {

// What a stage's passes see of a mesh. The numbers of data ranks change neither bytes nor operations, so
// meshes that differ in these alone have one shape.
mesh::MeshShape seen_by_passes(const mesh::MeshShape& mesh);

// Mean seconds of a run's actions on one stage; 0 where the run had none of the kind.
struct MeasuredStage {
  models::StageSlice slice;
  double forward = 0;
  double backward = 0;  // B at once
  double backward_input = 0;
  double backward_weight = 0;
};

struct Measurement {
  std::vector<MeasuredStage> stages;
  double optimizer = 0;  // s a step, of all stages together; 0: not measured
  double overhead = 0;   // s a step besides the pipeline and the optimizer
};

// What the optimizer of one stage takes on one of the ranks that share it out.
struct OptimizerCost {
  double seconds = 0;
  int64_t held = 0;       // bytes of state between steps
  int64_t workspace = 0;  // bytes at most while it steps

  // Of another stage of the rank, which is stepped after this one.
  OptimizerCost& operator+=(const OptimizerCost& other);
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

// Where costs come from: a device, by itself or scaled to what a run measured.
struct CostSource {
  DeviceModel device;
  Calibration calibration{};
  std::string description{};                           // "modelled for h100", "measured in runs/a/trace.json"
  std::optional<double> product_flops = std::nullopt;  // of a rank: the rate of large products, if measured
  bool from_trace = false;
  CoreSharing sharing{};  // predictions of steps count it; costs of passes are of a core for each thread
};

// Dry runs that the cost models of several layouts share. For one thread.
class FootprintCache {
 public:
  using Each = std::map<models::Recompute, Footprints>;

  explicit FootprintCache(const models::ModelConfig& model) : model_(model) {}
  std::shared_ptr<const Each> of(BatchShape batch);

 private:
  models::ModelConfig model_;
  std::vector<std::shared_ptr<const Each>> known_;
};

// What one stage of a job takes, in seconds and in bytes.
struct StageForecast {
  StagePasses passes;
  schedule::StageCost cost;       // passes with what is exchanged within them
  StageExchange within;           // of weights and gradients: what a device that copies itself does in passes
  schedule::ExchangeCost beside;  // and what goes on beside passes
  HeldBytes held;                 // between steps, and gathered and reduced in passes
  schedule::StageBytes bytes;     // of passes
  OptimizerCost optimizer;
  int64_t sum_scratch = 0;  // bytes of a CPU rank's sums over ranks beside their tensors
};

// Of a job on one rank of its mesh: one of its microbatches, and its optimizer. For one thread.
class CostModel {
 public:
  // A pass takes its products' operations or the bytes of their weights, whichever is longer; then the bytes
  // of everything else, and its launches. All is then scaled as the calibration says. To this comes what the
  // pass exchanges: the rank waits for all of it, but for the keys and values that travel around a ring while
  // attention computes, and for what tensor-parallel ranks exchange of one gradient while B computes the
  // other.
  CostModel(const PlanBase& base, const CostSource& source);
  // The same with dry runs of `cache`, and with links of the job's mesh where they are at hand.
  CostModel(FootprintCache& cache, PlanBase base, const CostSource& source,
            std::shared_ptr<const MeshLinks> links = nullptr);

  // All of these of a stage, found once; the passes as of a microbatch that recomputes most.
  const StageForecast& of(const models::StageSlice& slice) const { return of(slice, recompute_of(slice)); }
  const StageForecast& of(const models::StageSlice& slice, models::Recompute recompute) const;
  // The same of a stage of the job with these layers.
  const StageForecast& of(const pipeline::LayerAssignment& layers, int stage) const {
    return of(slice(layers, stage));
  }
  // Of a stage's microbatches: microbatch i has number i % size. They live as long as this.
  std::vector<const StageForecast*> of_microbatches(const pipeline::LayerAssignment& layers, int stage) const;
  // Do microbatches of a stage differ?
  bool by_microbatch() const { return recomputes_by_microbatch(base_.job.train.recompute); }
  models::StageSlice slice(const pipeline::LayerAssignment& layers, int stage) const {
    return models::stage_slice(layers, stage, head_parts(base_), shares_out_embedding(base_));
  }
  // Seconds until the head's input is on all ranks, or all their terms of its gradient are on the last
  // stage's.
  double head_transfer(int last) const;

  StagePasses passes(const models::StageSlice& slice) const { return passes(slice, recompute_of(slice)); }
  StagePasses passes(const models::StageSlice& slice, models::Recompute recompute) const;
  // Seconds: passes() and within_passes().
  schedule::StageCost stage(const models::StageSlice& slice) const {
    return stage(slice, recompute_of(slice));
  }
  schedule::StageCost stage(const models::StageSlice& slice, models::Recompute recompute) const;
  // The part of a pass's waiting that another pass can hide. On a CPU that is what travels between hosts:
  // within a host processors copy.
  double wire(const PassTime& pass) const;
  // Bytes that are read and written; of Muon also its products, or the exchange of matrices beside them where
  // that takes longer.
  OptimizerCost optimizer(const models::StageSlice& slice) const;
  double transfer(int from, int to) const;  // seconds of one boundary tensor
  // Seconds in which the first stage's rank sends others their shards of the embedding's gradient and gets
  // their weights, once a step; 0 where the embedding is not in shards.
  double embedding_exchange() const;
  StageExchange exchange(const models::StageSlice& slice) const;  // of weights and gradients
  // The part of it that a device which copies itself does within its passes, which stage() therefore counts:
  // gathers of streamed weights in each pass that reads them, and in `sum` all reductions after each
  // microbatch, in the pass before them.
  StageExchange within_passes(const models::StageSlice& slice) const;
  // The rest, which goes on beside passes.
  schedule::ExchangeCost beside_passes(const models::StageSlice& slice) const;
  double norm_exchange() const { return 2 * links_->world().broadcast(); }  // until all know the global norm
  double overhead() const { return calibration_.overhead; }                 // seconds a step, on every rank

  const StageFootprint& footprint(const models::StageSlice& slice) const {
    return footprint(slice, recompute_of(slice));
  }
  // Of the stage if it recomputed so much.
  const StageFootprint& footprint(const models::StageSlice& slice, models::Recompute recompute) const {
    return footprints_->at(recompute).of(slice);
  }
  // What its passes hold, gathered weights and gradients on their way included.
  schedule::StageBytes bytes(const models::StageSlice& slice, models::Recompute recompute) const;
  const PlanBase& base() const { return base_; }
  // The simulated pipeline on the cores that ranks share.
  schedule::Simulation on_cores(const schedule::Schedule& schedule, schedule::Simulation alone) const;
  // How much longer all ranks take what they do at the same time.
  double load() const { return sharing_.load(base_.mesh.world_size(), base_.job.run.threads); }
  const schedule::ShardOptions& shard() const { return shard_; }
  // The most that a microbatch recomputes.
  models::Recompute recompute_of(const models::StageSlice& slice) const;

 private:
  friend class Calibrator;
  struct Parts;
  Parts parts(const models::StageSlice& slice, models::Recompute recompute) const;
  Parts mean_parts(const models::StageSlice& slice) const;  // over the job's microbatches
  PassTime exchange_of_backward(const StageFootprint& stage, const Parts& parts) const;
  PassTime time(const kernels::Cost& cost) const;
  int64_t sum_scratch(const models::StageSlice& slice) const;
  const BatchShape& batch() const { return footprints_->at(models::Recompute::none).batch(); }

  PlanBase base_;
  schedule::ShardOptions shard_;
  DeviceModel device_;
  Calibration calibration_;
  CoreSharing sharing_;
  std::shared_ptr<const MeshLinks> links_;
  std::shared_ptr<const FootprintCache::Each> footprints_;
  double flops_;  // rates of this rank
  double bandwidth_;
  mutable std::map<std::pair<Footprints::Kind, models::Recompute>, StageForecast> known_;
};

// Blocks are scaled to the measured stages without the head, and the head to what is left of the last
// stage's forward. `run`: the job that was measured. Throws UsageError where the measurement has no stage, or
// one without forward or backward.
Calibration calibrate(const PlanBase& run, const DeviceModel& device, const Measurement& measured);

}  // namespace pptrain::app

// What a stage holds and what its passes cost, in operations and bytes. The passes themselves run on tensors
// without memory (kernels/dry_run.h), so that no second description of a layer exists.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/kernels/cost.h"
#include "core/kernels/device_name.h"
#include "core/optim/footprint.h"
#include "models/model_config.h"
#include "models/seams.h"
#include "models/transformer_stage.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {

// One microbatch of a job on one rank: `documents` rows of `length` tokens.
struct BatchShape {
  int64_t documents = 1;
  int64_t length = 1;
  bool bfloat16 = true;
  models::Recompute recompute = models::Recompute::none;
  at::DeviceType device = at::kCPU;  // that the passes will run on: it sets the chunks of the head
  kernels::GpuKind gpu = {};         // whose libraries' memory counts; none: a CPU's, or not known
  bool deterministic = true;         // attention's backward pass on a GPU
  // The ranks that share out one replica of a stage: seen_by_passes(). The footprint is that of the first
  // rank.
  mesh::MeshShape mesh = {};
  models::ContextKind cp_kind = models::ContextKind::ring;
  int sequence_slices = 1;     // of a microbatch, whose passes are then those of a slice, the mean of all
  double label_smoothing = 0;  // of the loss: the head has more of each row to exchange and to compute
  bool overlap = false;        // B takes weight gradients beside input gradients, on a device with streams

  // Of the whole list, which context-parallel ranks share out.
  int64_t tokens() const { return documents * length; }
  bool operator==(const BatchShape&) const = default;
};

struct PassFootprint {
  kernels::Cost cost;
  // Bytes that the pass holds at its peak beside the activations (F, B, I) or weight operands (W) of the
  // microbatch. The incoming gradient and what the pass returns count, where they are no part of these.
  // Beside tensors, a GPU's libraries count as their sources say (core/attention/gpu.h, kernels/dry_run.h).
  // Without a GPU tensors alone do, and attention as the project's CPU kernel takes it.
  int64_t workspace = 0;
};

// Parameters of a group that compute in one type and have the same copies.
struct BufferFootprint {
  int64_t elements = 0;
  int64_t compute_bytes = 4;  // of an element as layers compute with it
  nn::Copies copies = nn::Copies::one;
  bool frozen = false;  // compute weights alone
  bool operator==(const BufferFootprint&) const = default;
};

// What is gathered, reduced and freed together, as a rank that is not divided holds it.
struct GroupFootprint {
  bool experts = false, adapters = false;
  int pipeline_shards = 1;  // pipeline ranks that share out the embedding's state
  bool in_passes = true;    // of the stage; else the rank has such a shard alone
  std::vector<BufferFootprint> buffers;
  std::vector<optim::ParameterKind> parameters;  // in the buffers; those that learn
  bool operator==(const GroupFootprint&) const = default;
};

struct StageFootprint {
  std::vector<GroupFootprint> groups;  // in order of use
  // Between steps, of a rank whose groups are not divided; of groups in passes. A tied head counts on its
  // stage: it has its own copy.
  int64_t parameters = 0;
  int64_t weight_bytes = 0;    // float32 masters, and bfloat16 copies of all but norms; of frozen ones alone
  int64_t gradient_bytes = 0;  // float32

  // Of one microbatch. The stage's input counts as activation, the microbatch's own tensors do not.
  int64_t activation = 0;       // bytes from F to B or I
  int64_t weight_operands = 0;  // bytes from I to W
  int64_t boundary = 0;         // bytes of what goes to the next stage, and of its gradient

  PassFootprint forward;
  PassFootprint backward;         // B
  PassFootprint backward_input;   // I; what is recomputed is in it
  PassFootprint backward_weight;  // W

  // Of a stage with a part of a spread head.
  int64_t head = 0;             // bytes from S to T
  PassFootprint head_forward;   // S
  PassFootprint head_backward;  // T
  int64_t head_gradient = 0;    // of the last stage: bytes of all terms of a microbatch, from T to B or I

  schedule::StageBytes bytes() const;  // as schedule::peak_bytes wants it
};

// Half a microsecond a kernel: 2 ms for a stage of 32 layers.
StageFootprint dry_run(const models::ModelConfig& model, const models::StageSlice& slice,
                       const BatchShape& batch);

// Dry runs of one model's stages, each kind of stage once, and of long ones none: from two short ones follows
// what each further layer adds. For one thread.
class Footprints {
 public:
  Footprints(const models::ModelConfig& model, const BatchShape& batch);

  // The kinds of the layers (those with experts, of other attention, and of which other weights learn,
  // differ), embedding, head, into how many parts it is cut and whether one is here, and whether the
  // embedding is in shards: where they begin changes nothing else.
  using Kind = std::tuple<std::vector<int>, bool, bool, int, bool, bool>;

  const StageFootprint& of(const models::StageSlice& slice) const;
  Kind kind_of(const models::StageSlice& slice) const;  // stages of one kind have one footprint
  const models::ModelConfig& model() const { return model_; }
  const BatchShape& batch() const { return batch_; }

 private:
  bool alike(const models::StageSlice& slice) const;  // all of its layers
  const StageFootprint& of_layers(models::StageSlice slice, int layers) const;
  StageFootprint measure(const models::StageSlice& slice) const;

  models::ModelConfig model_;
  BatchShape batch_;
  std::vector<int> kind_of_layer_;
  mutable std::map<Kind, StageFootprint> known_;
};

}  // namespace pptrain::app

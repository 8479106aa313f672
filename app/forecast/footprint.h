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
#include "core/nn/loss_terms.h"
#include "core/optim/footprint.h"
#include "models/model_config.h"
#include "models/stage_parallelism.h"
#include "models/stage_slice.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/schedule/cost/memory.h"

namespace pptrain::app {

// One microbatch of a job on one rank: `documents` rows of `length` tokens.
struct BatchShape {
  int64_t documents = 1;
  int64_t length = 1;
  bool bfloat16 = true;
  config::Recompute recompute = config::Recompute::none;
  at::DeviceType device = at::kCPU;  // of the passes: it sets the chunks of the head
  kernels::GpuKind gpu = {};         // its libraries' memory counts; none: a CPU, or not known
  bool deterministic = true;         // attention's backward pass on a GPU
  // The ranks that shard one replica of a stage: seen_by_passes(). The footprint is the first rank's.
  mesh::MeshShape mesh = {};
  models::ContextKind cp_kind = models::ContextKind::ring;
  int sequence_slices = 1;        // of a microbatch; passes are then a slice's, the mean of all
  int64_t attention_length = 1;   // models::attention_length(): by it slices cost the same
  nn::LossTerms loss_terms = {};  // the head has more of each row to exchange and to compute
  bool overlap = false;           // B computes weight gradients on a second stream, if the device has streams

  // Tokens of the whole list, which is sharded over context-parallel ranks.
  int64_t tokens() const { return documents * length; }
  bool operator==(const BatchShape&) const = default;
};

struct PassFootprint {
  kernels::Cost cost;
  // Bytes that the pass holds at its peak in addition to the microbatch's activations (F, B, I) or weight
  // operands (W). The incoming gradient and the pass's result count unless they are part of these. A GPU's
  // libraries count as their sources say (core/attention/gpu.h, kernels/dry_run.h). Without a GPU only
  // tensors count, with attention as the project's CPU kernel computes it.
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

// Parameters that are gathered, reduced and freed together; sizes without sharding.
struct GroupFootprint {
  bool experts = false, adapters = false;
  int pipeline_shards = 1;  // pipeline ranks over which the embedding's state is sharded
  bool in_passes = true;    // of the stage; else the rank has only such a shard
  std::vector<BufferFootprint> buffers;
  std::vector<optim::ParameterKind> parameters;  // in the buffers; those that learn
  int64_t fp8_bytes = 0;                         // of copies of the whole weights in FP8
  bool operator==(const GroupFootprint&) const = default;
};

struct StageFootprint {
  std::vector<GroupFootprint> groups;  // in order of use
  // Between steps, if groups are not sharded; groups in passes only. A tied head counts on its stage, which
  // has its own copy.
  int64_t parameters = 0;
  int64_t weight_bytes =
      0;  // float32 masters, bfloat16 copies of all but norms, copies in FP8; frozen: no masters
  int64_t gradient_bytes = 0;  // float32

  // For one microbatch. The stage's input counts as activation, the microbatch's own tensors do not.
  int64_t activation = 0;       // bytes from F to B or I
  int64_t weight_operands = 0;  // bytes from I to W
  int64_t boundary = 0;         // bytes that go to the next stage, and of their gradient

  schedule::PerPass<PassFootprint> passes = {};  // what B and I recompute is in them

  int64_t head = 0;           // of a stage with a part of a spread head: bytes from S to T
  int64_t head_gradient = 0;  // last stage: bytes of all terms of a microbatch, from T to B or I

  schedule::StageBytes bytes() const;  // as schedule::peak_bytes wants it
};

// Half a microsecond a kernel: 2 ms for a stage of 32 layers.
StageFootprint dry_run(const models::ModelConfig& model, const models::StageSlice& slice,
                       const BatchShape& batch);

// Dry runs of one model's stages, each kind of stage once. Long stages are not run: two short ones show what
// each further layer adds. For one thread.
class Footprints {
 public:
  Footprints(const models::ModelConfig& model, const BatchShape& batch);

  // The kinds of the layers, embedding, head, the number of head parts, whether one is here, and whether the
  // embedding is sharded. Layers differ in kind by experts, by attention and by the weights that learn. The
  // first layer's number changes nothing else.
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

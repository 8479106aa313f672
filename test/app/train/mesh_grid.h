// Small jobs on meshes of up to eight ranks that cover all pairs of options, and the job on one rank that
// each must agree with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/mesh/device_mesh.h"
#include "test/app/small_job.h"

namespace pptrain::test {

inline constexpr int most_ranks = 8;
inline constexpr int grid_experts = 8;
inline constexpr double grid_clip = 0.5;  // the jobs' train.grad_clip

// The mesh that repeats the last step from the checkpoint before it.
enum class Resumed { no, tensor, context_sharded };
inline constexpr size_t resumed_count = 3;

// A mesh and its options.
struct GridJob {
  mesh::MeshShape mesh;
  std::string schedule = "1f1b";
  int stages_per_rank = 0;
  int microbatches = 2;
  bool tied = false;
  bool documents = false;  // with unequal lengths
  std::string packing = "sequential";
  std::string lengths = "fixed";
  std::string dtype = "fp32";  // "fp8": bf16 with train.fp8
  std::string optimizer = "adamw";
  std::string recompute = "none";
  std::string reshard = {};  // empty: unset
  std::string reduce_gradients = "step";
  std::string cp_kind = "ring";
  bool post_validation = false;
  bool generates = false;  // generates and validates after the last step
  Resumed resumed = Resumed::no;
  bool experts = false;
  bool spread_head = false;
  int slices = 1;  // per sequence

  int data_ranks() const { return mesh.dp_replicate * mesh.dp_shard; }
  std::string name() const;
  // The settings that numbers depend on. Jobs with equal ones train the same model on the same samples.
  std::vector<std::string> common() const;
  std::vector<std::string> layout() const;
  // The same samples on one rank: a microbatch holds the samples of all data ranks.
  std::vector<std::string> one_rank() const;
  // The layout that repeats the last step.
  std::vector<std::string> layout_after() const;
  // A job with the same bits on another layout. It differs only in pp (unless the head is spread), schedule,
  // recompute, post-validation and the division of the data ranks. None if that gives this layout.
  std::optional<GridJob> twin() const;
};

// The job's text; the model is Llama, or Qwen3-MoE.
std::string grid_job_text(bool experts);
// Jobs on at most `most` ranks that cover all possible pairs of axis sizes, schedule, packing, lengths,
// dtype, optimizer and the other fields of a GridJob, and some triples. With experts an axis of the mesh is
// part of each pair: two other options meet with the dense model. PPTRAIN_TESTS_ALL covers them several
// times, with other triples.
std::vector<GridJob> grid_jobs(bool experts, int most = most_ranks);

}  // namespace pptrain::test

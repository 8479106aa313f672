// Small jobs on meshes of up to eight ranks, in which all pairs of options meet, and the job of one rank that
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

// On what mesh the last step is taken again, from the checkpoint before it.
enum class Resumed { no, tensor, context_sharded };
inline constexpr size_t resumed_count = 3;

// A mesh and how it is used.
struct GridJob {
  mesh::MeshShape mesh;
  std::string schedule = "1f1b";
  int stages_per_rank = 0;
  int microbatches = 2;
  bool tied = false;
  bool documents = false;  // of unequal length
  std::string packing = "sequential";
  std::string lengths = "fixed";
  std::string dtype = "fp32";
  std::string optimizer = "adamw";
  std::string recompute = "none";
  std::string reshard = {};  // empty: unset
  std::string reduce_gradients = "step";
  std::string cp_kind = "ring";
  bool post_validation = false;
  bool generates = false;  // and validates, after the last step
  Resumed resumed = Resumed::no;
  bool experts = false;
  bool spread_head = false;
  int slices = 1;  // of a sequence

  int data_ranks() const { return mesh.dp_replicate * mesh.dp_shard; }
  std::string name() const;
  // What the numbers depend on; jobs that agree in it train the same model on the same samples.
  std::vector<std::string> common() const;
  std::vector<std::string> layout() const;
  // The same samples on one rank: a microbatch holds those of all data ranks.
  std::vector<std::string> one_rank() const;
  // Where the last step is taken again.
  std::vector<std::string> layout_after() const;
  // A job with the same bits on another layout: only pp (not where the head is spread), schedule, recompute,
  // post-validation and what shares out the data ranks differ. None where that is this layout.
  std::optional<GridJob> twin() const;
};

// The job's text; the model is Llama, or Qwen3-MoE.
std::string grid_job_text(bool experts);
// All pairs of values occur that can: of axis sizes, schedule, packing, lengths, dtype, optimizer and the
// other fields of a GridJob; and some triples. With PPTRAIN_TESTS_ALL so several times, with other triples.
// On at most `most` ranks.
std::vector<GridJob> grid_jobs(bool experts, int most = most_ranks);

}  // namespace pptrain::test

// Small jobs on every legal mesh of up to eight ranks, and the job of one rank that each must agree with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mesh/device_mesh.h"
#include "test/app/small_job.h"

namespace pptrain::test {

inline constexpr int most_ranks = 8;
inline constexpr int grid_experts = 8;
inline constexpr double grid_clip = 0.5;  // the jobs' train.grad_clip

// A mesh and how it is used: options that must not matter change from one mesh to the next, so that each of
// them meets most axes.
struct GridJob {
  mesh::MeshShape mesh;
  std::string schedule = "1f1b";
  int stages_per_rank = 0;
  int microbatches = 2;
  bool tied = false;
  bool documents = false;  // of unequal length
  std::string packing = "sequential";
  std::string lengths = "fixed";
  std::string recompute = "none";
  std::string reshard = {};  // empty: unset
  std::string reduce_gradients = "step";
  std::string cp_kind = "ring";
  bool post_validation = false;
  bool experts = false;

  int data_ranks() const { return mesh.dp_replicate * mesh.dp_shard; }
  std::string name() const;
  // What the numbers depend on; jobs that agree in it train the same model on the same samples.
  std::vector<std::string> common() const;
  std::vector<std::string> layout() const;
  // The same samples on one rank: a microbatch holds those of all data ranks.
  std::vector<std::string> one_rank() const;
  // Jobs of one class have equal bits: only pp, schedule and what shares out the data ranks differ.
  std::string bit_class() const;
};

// The job's text; the model is Llama, or Qwen3-MoE.
std::string grid_job_text(bool experts);
std::vector<GridJob> grid_jobs(bool experts);
// Of these few in which still all pairs of axis sizes occur, all pairs of options and of axes with one, two
// and more ranks, and all jobs whose bits are to be those of another one.
std::vector<GridJob> covering_jobs(const std::vector<GridJob>& jobs);

}  // namespace pptrain::test

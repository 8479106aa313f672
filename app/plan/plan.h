// A job resolved: what everything that runs, predicts or checks it reads. load_plan.h makes it from a file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/config/job_config.h"
#include "models/model_config.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// What all plans of a job share, whatever auto and cost choose.
struct PlanBase {
  config::JobConfig job;
  models::ModelConfig model;
  mesh::MeshShape mesh;
  bool chooses_recompute = false;  // train.recompute was auto: stages that do not fit may recompute more
};

// What auto, cost and the search choose.
struct Choice {
  int64_t micro_batch_size = 1;
  int64_t grad_accum_steps = 1;
  std::vector<std::string> recompute;  // train.recompute
  std::string schedule;                // a name, or a file
  int64_t stages_per_rank = 1;
  pipeline::LayerAssignment layers;
};

// Its job holds what was chosen in place of auto, cost and 0: written as TOML, it reads back to this plan.
struct Plan : PlanBase {
  pipeline::LayerAssignment layers;  // of each stage
  schedule::Schedule schedule;       // lowered and proven
  schedule::Schedule compute;        // its compute actions alone
};

// Its job says what train.recompute is in the place of auto. Throws UsageError that names the key where the
// model or the mesh is impossible.
PlanBase plan_base(const config::JobConfig& job);

// The same job on another mesh.
PlanBase on_mesh(PlanBase base, const mesh::MeshShape& mesh);

// The plan of a job that leaves nothing open: its schedule is a name or a file, its split other than cost.
// Throws UsageError.
Plan make_plan(const config::JobConfig& job);

// The same from parts at hand: `lowered` is the job's schedule, `layers` its split.
Plan make_plan(PlanBase base, schedule::Schedule lowered, pipeline::LayerAssignment layers);

// The plan of the job with what was chosen; `lowered` is the chosen schedule. The one place where a choice
// enters a job.
Plan make_plan(PlanBase base, const Choice& choice, schedule::Schedule lowered);

// Is pp_schedule a file, and not a name?
bool is_schedule_file(const std::string& pp_schedule);

// What lowering puts into the job's lists, for ranks that share the stages' parameters.
schedule::LowerOptions lower_options(const PlanBase& base);
// distributed.reshard_after_forward, or what it is where it is not set.
bool reshards_after_forward(const config::DistributedSection& distributed);

// What the job's generated schedule is to be.
schedule::ScheduleSpec schedule_spec(const config::JobConfig& job);

// The layers of `stages` stages as distributed.pp_split (not cost) shares them out. Throws UsageError.
pipeline::LayerAssignment split_layers(const config::JobConfig& job, int stages);

// All that ranks must agree on before they train, by name: "train.seq_len" and the other keys of the job, the
// layers, a hash of the action lists. Paths of files are left out, since hosts may keep them in different
// places, and so is what data files hold (train/same_job.h); a schedule's file counts by its actions.
using Identity = std::vector<std::pair<std::string, std::string>>;
Identity identity(const Plan& plan);
// A hash of it: 32 hexadecimal digits.
std::string fingerprint(const Plan& plan);
std::string fingerprint(const Identity& identity);

}  // namespace pptrain::app

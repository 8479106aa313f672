// A job resolved: what everything that runs, predicts or checks it reads. load_plan.h makes it from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/plan/layout.h"
#include "core/config/job_config.h"
#include "core/nn/loss_terms.h"
#include "models/model_config.h"
#include "models/stage_slice.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/mesh/gpu_blocks.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/schedule.h"

namespace pptrain::app {

// The part that all plans of a job share; auto and cost change nothing here.
struct PlanBase {
  config::JobConfig job;
  models::ModelConfig model;
  mesh::MeshShape mesh;
  bool bits_depend_on_pp = false;       // or on what is chosen for it: a spread head, slices, data.balance
  bool chooses_recompute = false;       // train.recompute was auto: stages that do not fit may recompute more
  std::string given = {};               // the keys that were given alone, as TOML (config::GivenJob)
  std::vector<std::string> notes = {};  // on the job's file, for the user
};

// Where a plan's order of actions comes from.
enum class Order {
  given,     // the job's schedule, by name or in a file
  spread,    // made at the start from that schedule, for a spread head
  searched,  // found at the start
  awaited,   // none yet: a stand-in until with_choices(), since rank 0 chooses what the job leaves open
};

// Its job holds what was chosen in place of auto, cost and 0: written as TOML, it reads back to this plan. If
// the order was found at the start, the job of job_to_save() does.
struct Plan : PlanBase {
  pipeline::LayerAssignment layers;  // of each stage
  schedule::Schedule schedule;       // lowered and proven
  schedule::Schedule compute;        // its compute actions alone
  Order order = Order::given;
  std::string named{};     // of a searched order: the job's fastest named schedule; "" if none fits
  double named_ratio = 1;  // its step's time to the order's, by the costs that chose the order
  // Bytes of a rank within which each step chooses what its microbatches recompute, by their numbers of
  // tokens; 0: all steps recompute as the job says.
  double recompute_memory = 0;
  // Of a job whose pipeline was shortened to fit the processes (load_plan.h): its ranks before, 0 if it was
  // not; and processes that have no rank now.
  int full_ranks = 0, spare_processes = 0;
  bool reads_data = true;  // otherwise ranks do not compare the job's data, which may be elsewhere

  // Was the order found at the start? Then the run's folder keeps it.
  bool keeps_schedule() const { return order == Order::spread || order == Order::searched; }
};

// Its job says what train.recompute is in the place of auto, and pp_head = "last" if spread is impossible.
// Throws UsageError that names the key if the model or the mesh is impossible.
PlanBase plan_base(const config::JobConfig& job);

// The same job on another mesh; and on another layout, with its layers if it has them.
PlanBase on_mesh(PlanBase base, const mesh::MeshShape& mesh);
PlanBase on_layout(PlanBase base, const Layout& layout);

// The plan of a job that leaves nothing open: its schedule is a name or a file, its split other than cost.
// Throws UsageError.
Plan make_plan(const config::JobConfig& job);

// The same from parts at hand: `lowered` is the job's schedule, `layers` its split.
Plan make_plan(PlanBase base, schedule::Schedule lowered, pipeline::LayerAssignment layers);

// The plan of the job on this layout; `lowered` is the layout's schedule.
Plan make_plan(PlanBase base, const Layout& layout, schedule::Schedule lowered);

// The plan of the steps that have so many microbatches (train.grad_accum_schedule), with the same layers.
Plan with_microbatches(const Plan& plan, int64_t microbatches);

// What was chosen for the plan at the start, as text: its job and its schedule's file. And the plan of the
// same job on a rank that awaits it. The text is not checked: find_other_job() then compares the plans.
std::string choices_of(const Plan& plan);
Plan with_choices(const Plan& stand_in, const std::string& choices);

// What distributed.pp_schedule says: auto, search, a file ending in .csv, or a schedule's name.
enum class ScheduleChoice { automatic, search, file, name };
ScheduleChoice schedule_choice(const std::string& pp_schedule);

// The plan's job for those who read it later, from the run's folder, checkpoints and traces: a searched
// schedule is the file schedule.csv in the run's folder, which rank 0 writes. Paths are absolute.
config::JobConfig job_to_save(const Plan& plan);
std::filesystem::path kept_schedule(const config::JobConfig& job);

// Pipeline ranks that divide the head: 1 if the last stage has it, or if that is still open.
int head_parts(const PlanBase& base);

// In training: do pipeline ranks shard the embedding's state too (parallel/pipeline/embedding_shards.h)? They
// do with a spread head. Exceptions: embedding and head are tied, a part of the model is frozen, or the ranks
// of a stage shard the embedding already. Also if gradients are summed after each microbatch, if steps are
// validated late, or if a GPU has no room for the links.
bool shares_out_embedding(const PlanBase& base);

// The stage's part of the model. Only a job that trains shards the embedding's state.
models::StageSlice slice_of(const PlanBase& base, const pipeline::LayerAssignment& layers, int stage,
                            bool trains = true);

// What lowering puts into the job's lists, for ranks that share the stages' parameters.
schedule::ShardOptions lower_options(const PlanBase& base);
// How the job's NCCL communicators share a GPU.
mesh::GpuBlocks gpu_blocks(const PlanBase& base);
nn::LossTerms loss_terms(const config::TrainSection& train);

// What the job's generated schedule is to be.
schedule::ScheduleSpec schedule_spec(const config::JobConfig& job);

// The schedule that the job names, or that its file holds: compute actions alone, with overlapped pairs as
// they are, and without S and T if the job wants the head on the last stage. Throws UsageError.
schedule::Schedule given_schedule(const config::JobConfig& job);

// The layers of `stages` stages as distributed.pp_split (not cost) divides them. Throws UsageError.
pipeline::LayerAssignment split_layers(const config::JobConfig& job, int stages);

// All that ranks must agree on before they train, by name: "train.seq_len" and the other keys of the job, the
// layers, a hash of the action lists. Paths of files are left out, since hosts may keep them in different
// places, and so is what data files hold (launch/same_job.h); a schedule's file counts by its actions.
using Identity = std::vector<std::pair<std::string, std::string>>;
Identity identity(const Plan& plan);
// A hash of it: 32 hexadecimal digits.
std::string fingerprint(const Plan& plan);
std::string fingerprint(const Identity& identity);

}  // namespace pptrain::app

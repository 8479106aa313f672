// A job resolved: what everything that runs, predicts or checks it reads. load_plan.h makes it from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/config/job_config.h"
#include "core/config/word.h"
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
  bool chooses_recompute = false;       // train.recompute was auto: stages that do not fit may recompute more
  std::string given = {};               // the keys that were given alone, as TOML (config::GivenJob)
  std::vector<std::string> notes = {};  // on the job's file, for the user
};

// How a job lies on its ranks: what auto, cost and the searches choose.
struct Layout {
  mesh::MeshShape mesh;
  int64_t micro_batch_size = 1;
  int64_t grad_accum_steps = 1;
  std::vector<std::string> recompute{};  // train.recompute
  bool reshard = false;                  // distributed.reshard_after_forward
  bool every_microbatch = false;         // distributed.reduce_gradients = "microbatch"
  std::string schedule{};                // a name, or a file
  bool spread_head = false;              // distributed.pp_head
  int64_t sequence_slices = 1;           // distributed.pp_sequence_slices
  int64_t stages_per_rank = 1;
  pipeline::LayerAssignment layers{};

  // As --set says it: "distributed.pp_split=6,2". With them the job has this layout. `whole`: all keys, but
  // for the place of the head and slices where the job has them already; otherwise the schedule, the split,
  // and what differs from a job on this mesh.
  std::vector<std::string> overrides(const config::JobConfig& job, bool whole = false) const;
  bool operator==(const Layout&) const = default;
};

// Its job holds what was chosen in place of auto, cost and 0: written as TOML, it reads back to this plan.
// Where the order was found at the start, job_to_save() does.
struct Plan : PlanBase {
  pipeline::LayerAssignment layers;  // of each stage
  schedule::Schedule schedule;       // lowered and proven
  schedule::Schedule compute;        // its compute actions alone
  bool searched = false;             // distributed.pp_schedule is search: then the next two say
  std::string named{};               // which named schedule of the job is the fastest; "" where none fits
  double named_time = 0;             // s of its step
  bool keeps_schedule = false;       // its order was found at the start: searched, or with a spread head
  // Bytes of a rank within which each step chooses what its microbatches recompute, by their numbers of
  // tokens; 0: all steps recompute as the job says.
  double recompute_memory = 0;
  bool awaits_choices = false;  // a stand-in until with_choices(): rank 0 chooses what the job leaves open
  bool reads_data = true;       // otherwise ranks do not compare the job's data, which may be elsewhere
};

// Its job says what train.recompute is in the place of auto, and pp_head = "last" where spread is impossible.
// Throws UsageError that names the key where the model or the mesh is impossible.
PlanBase plan_base(const config::JobConfig& job);

// The layout that the job gives, without its layers.
Layout layout_of(const PlanBase& base);

// The same job on another mesh; and on another layout, whose layers are not looked at.
PlanBase on_mesh(PlanBase base, const mesh::MeshShape& mesh);
PlanBase on_layout(PlanBase base, const Layout& layout);

// The plan of a job that leaves nothing open: its schedule is a name or a file, its split other than cost.
// Throws UsageError.
Plan make_plan(const config::JobConfig& job);

// The same from parts at hand: `lowered` is the job's schedule, `layers` its split.
Plan make_plan(PlanBase base, schedule::Schedule lowered, pipeline::LayerAssignment layers);

// The plan of the job on this layout; `lowered` is the layout's schedule.
Plan make_plan(PlanBase base, const Layout& layout, schedule::Schedule lowered);

// What was chosen for the plan, as text; and the plan of the same job on a rank that awaits it. The text is
// not checked: find_other_job() then compares the plans.
std::string choices_of(const Plan& plan);
Plan with_choices(const Plan& stand_in, const std::string& choices);

// What distributed.pp_schedule says: auto, search, a file ending in .csv, or a schedule's name.
enum class ScheduleChoice { automatic, search, file, name };
ScheduleChoice schedule_choice(const std::string& pp_schedule);

// The plan's job for those who read it later, from the run's folder, checkpoints and traces: a searched
// schedule is the file schedule.csv in the run's folder, which rank 0 writes. Paths are absolute.
config::JobConfig job_to_save(const Plan& plan);
std::filesystem::path kept_schedule(const config::JobConfig& job);

// Pipeline ranks that share out the head: 1 where the last stage has it, or where that is still open.
int head_parts(const PlanBase& base);

// In training: do pipeline ranks share out the embedding's state too (parallel/pipeline/embedding_shards.h)?
// They do with a spread head, but where it is tied to it, a part of the model is frozen, ranks that share a
// stage shard the embedding already, gradients are summed after each microbatch, or steps are validated late.
bool shares_out_embedding(const PlanBase& base);

// What lowering puts into the job's lists, for ranks that share the stages' parameters.
schedule::ShardOptions lower_options(const PlanBase& base);

// What the job's generated schedule is to be.
schedule::ScheduleSpec schedule_spec(const config::JobConfig& job);

// The schedule that the job names, or that its file holds: computes alone, overlapped pairs as they stand
// there, but S and T not where the job wants the head on the last stage. Throws UsageError.
schedule::Schedule given_schedule(const config::JobConfig& job);

// The layers of `stages` stages as distributed.pp_split (not cost) shares them out. Throws UsageError.
pipeline::LayerAssignment split_layers(const config::JobConfig& job, int stages);

// All that ranks must agree on before they train, by name: "train.seq_len" and the other keys of the job, the
// layers, a hash of the action lists. Paths of files are left out, since hosts may keep them in different
// places, and so is what data files hold (launch/same_job.h); a schedule's file counts by its actions.
using Identity = std::vector<std::pair<std::string, std::string>>;
Identity identity(const Plan& plan);
// A hash of it: 32 hexadecimal digits.
std::string fingerprint(const Plan& plan);
std::string fingerprint(const Identity& identity);

// --- train.recompute as stages see it: one word for all of them, or one for each. A word is a level, or
// levels of the microbatches one after the other, which then repeat: "full:3/cheap:2". Sequence slices count
// as microbatches.

// Throws UsageError if the words are several with an "auto", whatever the number of stages.
void check_recompute_words(std::span<const std::string> words);

// The same, and if they are neither one nor as many as the stages.
void check_recompute(std::span<const std::string> words, int stages);

// Of a stage: microbatch i has level i % size.
std::vector<models::Recompute> microbatch_recompute(std::span<const std::string> words, int stage);
// The most that one of them recomputes.
models::Recompute stage_recompute(std::span<const std::string> words, int stage);

// Has a stage microbatches of several levels?
bool recomputes_by_microbatch(std::span<const std::string> words);

// The words for these stages: a single one where all are alike.
std::vector<std::string> recompute_words(std::span<const models::Recompute> stages);
// The same for the levels of their microbatches, [stage][microbatch].
std::vector<std::string> recompute_words(std::span<const std::vector<models::Recompute>> stages);

// "full", or in runs of equal stages "2 full, cheap, 5 none"; of a stage with several levels, with so many
// microbatches a step, each in so many sequence slices: "full (6 of 16 microbatches cheap)".
std::string describe_recompute(std::span<const std::string> words, int64_t microbatches, int64_t slices);

}  // namespace pptrain::app

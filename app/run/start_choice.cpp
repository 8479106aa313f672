#include "app/run/start_choice.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/config/differences.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/device_name.h"
#include "core/optim/lr_schedule.h"
#include "models/registry.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using config::Difference;
using config::Effect;

namespace {

// Do the jobs differ only in the layout and in what a resumed run does not read?
bool same_but_for_layout(const config::JobConfig& saved, const config::JobConfig& job) {
  return std::ranges::all_of(config::differences(saved, job), [](const Difference& difference) {
    return difference.effect == Effect::layout || difference.effect == Effect::none;
  });
}

// Was the run that `saved` belongs to begun by this job's "restart"?
bool begun_by_restart(const SavedRun& saved, const config::JobConfig& job) {
  return saved.job && config::resume_of(saved.job->checkpoint.resume) == config::Resume::restart &&
         saved.step < saved.job->train.steps && same_but_for_layout(*saved.job, job);
}

StartFrom restart(const config::JobConfig& job, const SavedProgress& progress, std::string& remark) {
  if (!progress.newest || !begun_by_restart(*progress.newest, job)) return StartFrom::nothing;
  remark = fmt::format(
      "checkpoint.resume = \"restart\" has begun the run in {}, which is at step {} of {}: it goes on. To "
      "start over before its end, move {} away or give another run.dir.",
      job.run.dir, progress.newest->step, job.train.steps, job.run.dir);
  return StartFrom::own_checkpoint;
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

std::string passed_over(const config::JobConfig& job, const SavedRun& newest) {
  const std::string& resume = job.checkpoint.resume;
  if (config::resume_of(resume) == config::Resume::automatic || same_folder(resume, newest.folder) ||
      same_folder(resume, job.run.dir) || same_folder(resume, newest.folder.parent_path())) {
    return "";
  }
  return fmt::format(
      "checkpoint.resume = \"{}\" counts for the first start in a folder alone: {} has a run at step {}, "
      "which goes on. To start over, give another run.dir, or checkpoint.resume = \"restart\"; to go back to "
      "an earlier checkpoint of this run, move the later ones out of {}.",
      resume, job.run.dir, newest.step, newest.folder.parent_path().string());
}

// The differences in words, by what they decide; those of the layout count as those of the course.
using Sorted = std::map<Effect, std::vector<std::string>>;

// "data.path", "data.sources[1].path".
bool is_path(std::string_view option) {
  return option.starts_with("data.") && option.ends_with(".path");
}

Sorted sort(const std::vector<Difference>& differences, bool same_file_known) {
  Sorted sorted;
  for (const Difference& difference : differences) {
    const bool moved = is_path(difference.option) && same_file_known;
    const bool of_course = moved || difference.effect == Effect::layout;
    sorted[of_course ? Effect::course : difference.effect].push_back(config::describe(difference));
  }
  return sorted;
}

// A product of sizes that a damaged file may make huge.
double samples_per_step(const config::JobConfig& job) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  return number(job.distributed.dp_replicate) * number(job.distributed.dp_shard) *
         number(job.train.grad_accum_steps) * number(job.train.micro_batch_size);
}

// The rate gives most families' models a bias on the choice of experts, which without it they do not have.
bool loses_bias(const config::ModelSection& saved, const config::ModelSection& model) {
  return saved.router_bias_update_rate > 0 && model.router_bias_update_rate == 0 &&
         !models::find_architecture(model.arch).decoder.sigmoid_router;
}

Sorted compare(const SavedRun& saved, const config::JobConfig& job, const std::string& data) {
  Sorted sorted;
  const bool known = !saved.data.empty() && !data.empty();
  if (saved.job) {
    sorted = sort(config::differences(*saved.job, job), known);
    const double was = samples_per_step(*saved.job), is = samples_per_step(job);
    if (was != is)
      sorted[Effect::course].push_back(fmt::format("a step took {:.0f} samples, takes {:.0f}", was, is));
  } else if (saved.seed != job.run.seed) {
    sorted[Effect::data].push_back(fmt::format("run.seed was {}, is {}", saved.seed, job.run.seed));
  }
  if (saved.job && loses_bias(saved.job->model, job.model))
    sorted[Effect::model].push_back(
        "with model.router_bias_update_rate = 0 the model would lose its bias on the choice of experts");
  if (known && saved.data != data) {
    sorted[Effect::data].push_back(
        fmt::format("data.path held other data (fingerprint {}, is {})", saved.data, data));
  }
  return sorted;
}

void refuse_other_model(const SavedRun& saved, const std::vector<std::string>& differences) {
  if (differences.empty()) return;
  throw UsageError(fmt::format(
      "{} is of another model or optimizer: {}. Set what it was, or start a new run in another run.dir.",
      saved.folder.string(), fmt::join(differences, "; ")));
}

void refuse_other_data(const SavedRun& saved, const std::vector<std::string>& differences) {
  throw UsageError(
      fmt::format("{} was trained on other data or in another order: {}. Set what it was; or say what is "
                  "meant: checkpoint.data = \"continue\" goes on at sample {} of the new order, "
                  "checkpoint.data = \"restart\" begins with its first sample.",
                  saved.folder.string(), fmt::join(differences, "; "), saved.next_sample));
}

// The checkpoint decides only the model; all else begins with the job.
ResumeTerms check_weights_alone(const SavedRun& saved, const config::JobConfig& job) {
  if (saved.job) refuse_other_model(saved, model_differences(*saved.job, job));
  return {
      .new_data = true,
      .next_sample = 0,
      .remarks = {fmt::format("{} holds weights alone: optimizer state, learning rate and data begin anew",
                              saved.folder.string())}};
}

}  // namespace

std::string machine(config::Device device) {
  if (device == config::Device::cpu) return kernels::cpu::loops().isa;
  return kernels::gpu_count() > 0 ? kernels::device_name(c10::Device(c10::kCUDA, 0)) : "";
}

StartFrom choose_start(const config::JobConfig& job, const SavedProgress& progress, std::string& remark) {
  remark.clear();
  const config::Resume resume = config::resume_of(job.checkpoint.resume);
  if (resume == config::Resume::restart) return restart(job, progress, remark);
  if (progress.newest) {
    remark = passed_over(job, *progress.newest);
    return StartFrom::own_checkpoint;
  }
  if (progress.checkpoints > 0) {
    throw Error(
        fmt::format("{} Nothing is begun anew over them, unless checkpoint.resume = \"restart\" sets "
                    "them aside.",
                    progress.problem));
  }
  return resume == config::Resume::named ? StartFrom::named : StartFrom::nothing;
}

SavedProgress find_progress(const fs::path& checkpoints, const Report& report,
                            checkpoint::KnownProblems& known) {
  SavedProgress progress{
      .checkpoints = static_cast<int64_t>(checkpoint::list_step_folders(checkpoints).size()),
      .newest = {},
      .problem = {}};
  std::optional<fs::path> newest;
  try {
    newest = checkpoint::find_resumable(checkpoints, report, known);
  } catch (const Error& error) {
    progress.problem = error.what();
  }
  if (newest) progress.newest = read_saved_run(*newest);
  return progress;
}

fs::path find_named_checkpoint(const std::string& name, const Report& report,
                               checkpoint::KnownProblems& known) {
  const fs::path path = name;
  if (!fs::exists(path)) {
    throw UsageError(fmt::format(
        "checkpoint.resume: \"{}\" does not exist; expected auto, none, restart, or the path of a checkpoint",
        name));
  }
  if (const auto found = checkpoint::find_named(path, report, known)) return *found;
  throw Error(fmt::format("checkpoint.resume: no complete checkpoint in {}", name));
}

SavedRun read_saved_run(const fs::path& step_folder) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(step_folder);
  SavedRun saved{.folder = step_folder,
                 .step = manifest.state.step,
                 .next_sample = manifest.state.next_sample,
                 .seed = static_cast<int64_t>(manifest.state.seed),
                 .job = {},
                 .given = {},
                 .data = {},
                 .base = {},
                 .weights_alone = manifest.weights_alone()};
  if (!manifest.job_toml.empty()) {
    const std::string name = fmt::format("the job in {}", (step_folder / checkpoint::manifest_name).string());
    saved.job = config::read_saved_job(manifest.job_toml, name);
    saved.given = manifest.given_toml;
  }
  const auto data = manifest.layout.find("data");
  if (data != manifest.layout.end()) saved.data = data->second;
  saved.base = base_of(manifest.layout);
  const auto machine = manifest.layout.find(machine_name);
  if (machine != manifest.layout.end()) saved.machine = machine->second;
  return saved;
}

std::vector<std::string> model_differences(const config::JobConfig& saved, const config::JobConfig& job) {
  std::vector<std::string> found;
  for (const Difference& difference : config::differences(saved, job)) {
    const bool shapes = difference.option.starts_with("model.") || difference.option.starts_with("lora.");
    if (difference.effect == Effect::model && shapes) found.push_back(config::describe(difference));
  }
  return found;
}

namespace {

// "; learning rate of step 21: 3.000e-04 before, 1.080e-03 now": more steps stretch the schedule. "" if it
// stays.
std::string changed_rate(const config::JobConfig& saved, const config::JobConfig& job, int64_t step) {
  const auto rate = [step](const config::JobConfig& of) {
    return optim::learning_rate(of.optimizer.lr, of.lr_schedule, of.train.steps, step);
  };
  const double before = rate(saved), now = rate(job);
  if (std::abs(now - before) <= 1e-6 * std::abs(before)) return "";
  return fmt::format("; learning rate of step {}: {:.3e} before, {:.3e} now", step + 1, before, now);
}

}  // namespace

ResumeTerms check_resume(const SavedRun& saved, const config::JobConfig& job, const std::string& data,
                         const Base& base) {
  check_base(saved.folder.string(), saved.base, base);
  if (saved.weights_alone) return check_weights_alone(saved, job);
  Sorted sorted = compare(saved, job, data);
  refuse_other_model(saved, sorted[Effect::model]);
  const std::vector<std::string>& other_data = sorted[Effect::data];
  const std::vector<std::string>& rest = sorted[Effect::course];
  ResumeTerms terms{.new_data = !other_data.empty(), .next_sample = saved.next_sample, .remarks = {}};
  if (terms.new_data) {
    if (job.checkpoint.data == config::ChangedData::same) refuse_other_data(saved, other_data);
    if (job.checkpoint.data == config::ChangedData::restart) terms.next_sample = 0;
    terms.remarks.push_back(fmt::format("other data or another order than in {}, from sample {} on: {}",
                                        saved.folder.string(), terms.next_sample,
                                        fmt::join(other_data, "; ")));
  }
  if (const std::string now = machine(job.run.device); !saved.machine.empty() && saved.machine != now)
    terms.remarks.push_back(fmt::format(
        "{} was computed with {}, this start has {}: results agree within rounding, not to the bit",
        saved.folder.string(), saved.machine, now));
  if (!saved.job) {
    terms.remarks.push_back(
        fmt::format("{} does not say which job saved it: only the seed was compared", saved.folder.string()));
  }
  if (!rest.empty()) {
    terms.remarks.push_back(fmt::format("{} goes on with changed settings: {}{}", saved.folder.string(),
                                        fmt::join(rest, "; "),
                                        saved.job ? changed_rate(*saved.job, job, saved.step) : ""));
  }
  return terms;
}

namespace {

// A copy in memory that is newer than the newest checkpoint takes its place.
void add_memory_copies(const MemoryFolder& memory, const Report& report, checkpoint::KnownProblems& known,
                       SavedProgress& progress) {
  if (!memory.holds_copies()) return;
  const SavedProgress copies = find_progress(memory.path(), report, known);
  if (!copies.newest || (progress.newest && progress.newest->step >= copies.newest->step)) return;
  progress.checkpoints += copies.checkpoints;
  progress.newest = copies.newest;
  progress.problem.clear();
}

}  // namespace

Start find_start(const config::JobConfig& job, const std::string& data, const Base& base,
                 const MemoryFolder& memory, const Report& report, checkpoint::KnownProblems& known) {
  Start start;
  SavedProgress progress = find_progress(fs::path(job.run.dir) / "checkpoints", report, known);
  add_memory_copies(memory, report, known, progress);
  start.from = choose_start(job, progress, start.remark);
  if (start.from == StartFrom::nothing) return start;
  const SavedRun saved = start.from == StartFrom::own_checkpoint
                             ? *progress.newest
                             : read_saved_run(find_named_checkpoint(job.checkpoint.resume, report, known));
  start.terms = check_resume(saved, job, data, base);
  if (memory.contains(saved.folder)) {
    start.terms.remarks.push_back(
        fmt::format("{} is newer than the checkpoints of the run; to go back to those, remove it",
                    saved.folder.parent_path().string()));
  }
  start.checkpoint = saved.folder.string();
  return start;
}

}  // namespace pptrain::app

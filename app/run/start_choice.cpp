#include "app/run/start_choice.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <system_error>

#include "core/base/error.h"
#include "core/config/differences.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

// Nothing differs but where it is computed, and what a run that goes on does not read.
bool same_but_for_layout(const config::JobConfig& saved, const config::JobConfig& job) {
  return std::ranges::all_of(config::differences(saved, job), [](const config::Difference& difference) {
    return difference.effect == config::Effect::layout || difference.effect == config::Effect::none;
  });
}

// Whether the run that `saved` is of was begun by this job's "restart".
bool begun_by_restart(const SavedRun& saved, const config::JobConfig& job) {
  return saved.job && saved.job->checkpoint.resume == "restart" && saved.step < saved.job->train.steps &&
         same_but_for_layout(*saved.job, job);
}

StartChoice restart(const config::JobConfig& job, const Progress& progress) {
  if (!progress.newest || !begun_by_restart(*progress.newest, job)) return {};
  return {.from = StartFrom::own_checkpoint,
          .remark = fmt::format("checkpoint.resume = \"restart\" has begun the run in {}, which is at step "
                                "{} of {}: it goes on. To "
                                "start over before its end, move {} away or give another run.dir.",
                                job.run.dir, progress.newest->step, job.train.steps, job.run.dir)};
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

std::string passed_over(const config::JobConfig& job, const SavedRun& newest) {
  const std::string& resume = job.checkpoint.resume;
  if (resume == "auto" || same_folder(resume, newest.folder) || same_folder(resume, job.run.dir) ||
      same_folder(resume, newest.folder.parent_path())) {
    return "";
  }
  return fmt::format(
      "checkpoint.resume = \"{}\" counts for the first start in a folder alone: {} has a run at step {}, "
      "which goes "
      "on. To start over, give another run.dir, or checkpoint.resume = \"restart\"; to go back to an earlier "
      "checkpoint of this run, move the later ones out of {}.",
      resume, job.run.dir, newest.step, newest.folder.parent_path().string());
}

}  // namespace

StartChoice choose_start(const config::JobConfig& job, const Progress& progress) {
  const std::string& resume = job.checkpoint.resume;
  if (resume == "restart") return restart(job, progress);
  if (progress.newest) {
    return {.from = StartFrom::own_checkpoint, .remark = passed_over(job, *progress.newest)};
  }
  if (progress.checkpoints > 0) {
    throw Error(fmt::format("{} Or start over with checkpoint.resume = \"restart\", which sets them aside.",
                            progress.problem));
  }
  const bool named = resume != "auto" && resume != "none";
  return {.from = named ? StartFrom::named : StartFrom::nothing, .remark = {}};
}

}  // namespace pptrain::app

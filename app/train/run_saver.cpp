#include "app/train/run_saver.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/config/loader.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/retention.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

using Clock = std::chrono::steady_clock;

namespace {

checkpoint::SaveOptions complete(checkpoint::SaveOptions options, const Plan& plan) {
  const config::JobConfig& job = plan.job;
  options.job_toml = config::to_toml(job_to_save(plan));
  options.given_toml = plan.given;
  options.keep_last_n = job.checkpoint.keep_last_n;
  options.keep_best_n = job.checkpoint.keep_best_n;
  return options;
}

// The newest checkpoint's name if it is the run's own; "" if it is another run's.
std::string newest_of_own(const std::filesystem::path& root, int64_t step) {
  std::string name = checkpoint::step_folder_name(step);
  return io::is_there(root / name) ? name : "";
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return step > 0 ? checkpoint::step_folder_name(step) : "";
}

RunSaver::RunSaver(const RunContext& context, comm::Communicator& disk, RankModel& model,
                   checkpoint::SaveOptions options, const checkpoint::RunState& state, bool is_saved)
    : context_(context),
      model_(model),
      state_(state),
      options_(complete(std::move(options), context.plan)),
      saved_step_(is_saved ? state.step : -1),
      saved_at_(Clock::now()),
      saver_(disk, options_, context.job.checkpoint.async, newest_of_own(options_.root, state.step)) {
  if (context.root() && options_.keep_best_n > 0) scores_ = checkpoint::read_scores(options_.root);
  model_.before_change([this] { saver_.protect(); });
}

void RunSaver::save(const checkpoint::RunState& state, bool is_last) {
  if (std::exchange(saved_step_, state.step) != state.step) {
    model_.check_weights();
    saver_.start(state, model_.contents(), terms(state, is_last));
  }
  if (is_last) saver_.finish();
  saved_at_ = Clock::now();
}

// While the loss is above its band no checkpoint is deleted: the newest sound one may be among the old.
checkpoint::SaveTerms RunSaver::terms(const checkpoint::RunState& state, bool is_last) {
  const std::lock_guard lock(mutex_);
  scores_.erase(state.step);
  if (state.validation_loss) scores_[state.step] = *state.validation_loss;
  return {.is_last = is_last, .removes_old = state.losses_above == 0, .scores = scores_};
}

std::string RunSaver::save_quickly(comm::Communicator& world, const checkpoint::RunState& state) {
  if (state.step == 0) return "no step was finished, so there is nothing to save";
  bool saved = saved_step_ == state.step;
  try {
    saver_.finish();
  } catch (const checkpoint::NotSaved&) {
    saved = false;
  }
  if (!saved) {
    model_.check_weights();
    checkpoint::save(world, options_, state, model_.contents(), terms(state, /*is_last=*/true));
  }
  saved_step_ = state.step;
  return fmt::format("step {} is saved in {}", state.step, options_.root.string());
}

std::optional<DivergedCheckpoints> RunSaver::save_diverged(const checkpoint::RunState& state) {
  DivergedCheckpoints result;
  model_.check_weights();
  saver_.start(state, model_.contents(), {.is_last = true, .removes_old = false, .diverged = true});
  try {
    saver_.finish();
    result.saved = saver_.newest();
  } catch (const checkpoint::NotSaved& error) {
    result.failure = error.what();
  }
  if (!context_.root()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (const auto sound = checkpoint::set_aside_diverged(options_.root, state.above_since, scores_))
    result.sound = *sound;
  return result;
}

bool RunSaver::is_due(int64_t step) const {
  const int64_t interval = context_.job.checkpoint.interval;
  return interval > 0 && step % interval == 0;
}

bool RunSaver::wants_save() {
  return context_.root() && (is_late() || is_among_best());
}

bool RunSaver::is_late() const {
  const double minutes = context_.job.checkpoint.minutes;
  const std::chrono::duration<double> since = Clock::now() - saved_at_;
  return minutes > 0 && since.count() >= 60 * minutes;
}

bool RunSaver::is_among_best() {
  if (!state_.validation_loss || options_.keep_best_n == 0) return false;
  const std::lock_guard lock(mutex_);
  forget_lost();
  return checkpoint::is_among_best(scores_, state_.step, *state_.validation_loss, options_.keep_best_n);
}

// Drops the scores of checkpoints that failed to be saved or were moved. A running save keeps its score.
void RunSaver::forget_lost() {
  std::erase_if(scores_, [&](const auto& s) {
    const bool under_way = s.first == saved_step_ && saver_.busy();
    return !under_way && !io::is_there(options_.root / checkpoint::step_folder_name(s.first));
  });
}

}  // namespace pptrain::app

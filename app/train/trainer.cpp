#include "app/train/trainer.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "app/data/inspection.h"
#include "app/data/targets.h"
#include "app/data/token_files.h"
#include "app/forecast/step_costs.h"
#include "app/launch/launcher_patience.h"
#include "app/rank/warm_up.h"
#include "app/run/run_log.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/timing.h"
#include "core/config/data_sources.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// Runs before weights are made, so that a user reads the log if they do not fit, or take long.
std::vector<OpenSource> open_sources(const RunContext& context, comm::Communicator& disk,
                                     const fault::Shutdown& shutdown) {
  const Wanted wanted = config::has_validation(context.job) ? Wanted::all : Wanted::training;
  const TokenFiles files = make_token_files(context, disk, wanted, [&] { return shutdown.requested(); });
  std::vector<OpenSource> sources = open_data(context.job, context.model.vocab, files, wanted);
  const std::vector<std::string> warnings = check_targets(context.job, sources);
  if (context.root()) {
    open_log(context.job.run.dir);
    announce(context, sources);
    for (const std::string& warning : warnings) spdlog::warn("warning: {}", warning);
    for (const std::string& warning : data_warnings(context.job)) spdlog::warn("warning: {}", warning);
  }
  return sources;
}

data::DataLoader open_training_data(const RunContext& context, const std::vector<OpenSource>& sources,
                                    int64_t microbatches) {
  data::LoaderOptions options = loader_options(context);
  options.microbatches = microbatches;
  if (context.job.data.balance == config::Balance::schedule) balance_schedule(context.plan, options);
  return {training_streams(sources), options, context.job.data.shuffle,
          static_cast<uint64_t>(context.job.run.seed)};
}

}  // namespace

Trainer::Trainer(RunContext& context, const fault::Shutdown& shutdown)
    : context_(context),
      shutdown_(shutdown),
      run_dir_(context),
      cores_(gather_cores(context.mesh.world(), context.plan)),
      metrics_(context, state_, core_sharing(cores_)),
      disk_comm_(checkpoint::disk_communicator(context.mesh.world())),
      sources_(open_sources(context, *disk_comm_, shutdown)),
      model_(context),
      loader_(open_training_data(context, sources_, context.job.train.grad_accum_steps)),
      steps_(
          context, model_, loader_,
          [this](int64_t microbatches) { return open_training_data(context_, sources_, microbatches); },
          state_, listeners_),
      divergence_(context.job.train, state_),
      pace_(make_pace_watch(context, steps_.profile(), core_sharing(cores_))) {
  if (const std::string crowding = describe_crowding(cores_); !crowding.empty())
    spdlog::warn("warning: {}; steps take longer than with a core for each thread", crowding);
  if (config::has_validation(context.job))
    between_steps_.push_back(make_evaluation(context, model_, sources_, steps_.profile(), metrics_, state_));
  if (context.job.eval.generate_interval > 0)
    between_steps_.push_back(make_samples(context, model_, steps_.profile(), state_));
}

struct Trainer::StopOrSave {
  bool stop = false;
  bool save = false;
  bool copy = false;  // into memory
  bool folder_is_gone = false;
};

// Withdraws unanswered requests; threads write what is left.
Trainer::~Trainer() {
  if (context_.activity != nullptr) context_.activity->set(comm::ActivityKind::storage, "the end of the run");
}

std::optional<int> Trainer::run() {
  try {
    const std::optional<int> code = train();
    if (context_.heartbeat != nullptr) context_.heartbeat->on_verdict({});
    return code;
  } catch (const std::exception& error) {
    if (stop_) stop_->failed();
    end_run_dir({.how = RunPhase::failed, .step = state_.step, .message = error.what()});
    throw;
  }
}

std::optional<int> Trainer::train() {
  const bool resumed = start();
  const int64_t steps = context_.job.train.steps;
  if (state_.step >= steps) {
    if (context_.root()) {
      spdlog::info(
          "nothing to do: {} is at step {} of {}. Start over with --set checkpoint.resume=restart, or train "
          "on with a larger train.steps.",
          context_.job.run.dir, state_.step, steps);
      if (state_.step == steps) run_dir_.end_killed_run(steps);
    }
    if (run_dir_.is_from_disk()) run_dir_.remove_copies();
    return 0;
  }
  open(resumed);
  warm_up();
  for (;;) {
    stop_->begin_step(state_.step + 1);
    steps_.run([this] {
      const StopOrSave wanted = wants();
      return wanted.stop || wanted.save || wanted.copy;
    });
    if (steps_.pending()) continue;
    switch (after_step()) {
      case AfterStep::next:
        break;
      case AfterStep::rescue:
        return rescue();
      case AfterStep::give_up:
        return give_up();
      case AfterStep::stop:
        return finish(/*stopped=*/true);
      case AfterStep::end:
        return finish(/*stopped=*/false);
    }
  }
}

// Evaluates, samples and saves as they are due, and agrees with the other ranks on how the run goes on.
Trainer::AfterStep Trainer::after_step() {
  stop_->finished(state_, divergence_.diverged());
  for (StepListener* listener : listeners_) {
    if (listener->is_due(state_.step)) listener->after_step();
  }
  stop_->begin_save();
  const StopOrSave agreed = agree();
  stop_agreed_ = agreed.stop;
  AfterStep next = AfterStep::next;
  if (agreed.folder_is_gone) {
    next = AfterStep::rescue;
  } else if (divergence_.diverged()) {
    next = AfterStep::give_up;
  } else if (state_.step == context_.job.train.steps) {
    next = AfterStep::end;
  } else if (agreed.stop) {
    next = AfterStep::stop;
  }
  if (next != AfterStep::next) stop_->stopping();
  if (next == AfterStep::rescue || next == AfterStep::give_up) return next;
  const bool ends = next != AfterStep::next;
  if (ends || agreed.save || saver_->is_due(state_.step)) save(ends);
  stop_->saved();  // or no save is due after all
  if (!ends && agreed.copy && state_.losses_above == 0) copies_->save(state_);
  return next;
}

void Trainer::warm_up() {
  if (context_.device.is_cpu()) return;
  const comm::ActivityScope warming(context_.activity, comm::ActivityKind::work, "the warm-up");
  const auto begin = Clock::now();
  app::warm_up(context_, model_, loader_.step(state_.next_sample).microbatches);
  if (context_.root()) spdlog::info("every pass ran, to load its kernels: {:.1f} s", seconds_since(begin));
}

bool Trainer::start() {
  try {
    checkpoint::probe_shared(*disk_comm_, fs::path(context_.job.run.dir) / "checkpoints");
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& error) {
    throw Error(fmt::format("run.dir: {}", error.what()));
  }
  resume();
  const bool resumed = !run_dir_.checkpoint().empty();
  if (resumed) {
    steps_.restore();
    divergence_.restore();
  } else {
    model_.initialise();
    state_ = {.seed = static_cast<uint64_t>(context_.job.run.seed)};
  }
  return resumed;
}

// Resumes from the newest checkpoint that proves sound at loading. Those that see one folder check it
// together.
void Trainer::resume() {
  std::unique_ptr<comm::Communicator> host;
  while (!run_dir_.checkpoint().empty()) {
    const checkpoint::Hosts& hosts = run_dir_.memory_hosts();
    const bool apart = hosts.several() && !run_dir_.is_from_disk();
    if (apart && !host) host = disk_comm_->subgroup(hosts.ranks_of(hosts.of(disk_comm_->rank())));
    const std::string problem =
        checkpoint::load_on_all(*disk_comm_, run_dir_.checkpoint(), [&](const checkpoint::Reader& reader) {
          state_ = run_dir_.adopt(reader.state());
          model_.load(reader, apart ? *host : *disk_comm_);
        });
    if (problem.empty()) return;
    run_dir_.pass_over(problem);
  }
}

void Trainer::open(bool resumed) {
  checkpoint::Layout layout = describe_layout(context_.plan, run_dir_.data());
  describe_base(run_dir_.base(), layout);
  const bool copies = context_.job.checkpoint.memory_seconds > 0;
  std::string shortage = copies ? shortage_of_copies(*disk_comm_, run_dir_, model_) : "";
  if (!shortage.empty() && !run_dir_.goes_on()) throw Shortage(shortage);  // before anything is set aside
  run_dir_.remove_copies_after(resumed ? state_.step : 0);
  if (context_.root()) {
    run_dir_.begin(state_.step);
    if (resumed) spdlog::info("resumed from {} at step {}", run_dir_.checkpoint(), state_.step);
    if (const auto& holder = run_dir_.holder()) requests_.emplace(context_.job.run.dir, *holder);
  }
  const auto ended = [this](int64_t step, const fs::path& folder, const std::string& failure) {
    if (requests_) requests_->saved(step, folder.filename().string(), failure);
  };
  saver_.emplace(context_, *disk_comm_, model_,
                 checkpoint::SaveOptions{.root = fs::path(context_.job.run.dir) / "checkpoints",
                                         .layout = layout,
                                         .job_toml = {},
                                         .keep = run_dir_.begun_from(),
                                         .warn = {},
                                         .before_publish = run_dir_.sync_metrics(),
                                         .ended = ended},
                 state_, /*is_saved=*/resumed && run_dir_.is_from_disk());
  if (copies) open_copies(layout, std::move(shortage));
  std::optional<int64_t> saved;
  if (context_.root()) {
    if (resumed) saved = run_dir_.saved_until(state_.step);
    metrics_.open(run_dir_.header(state_.step, layout), sources_, loader_, *saver_, saved);
  }
  disk_comm_->barrier();
  open_log(context_.job.run.dir);
  // The callback outlives this: an exception may leave the trainer before something ends the process.
  if (context_.heartbeat != nullptr)
    context_.heartbeat->on_verdict([folder = fs::path(context_.job.run.dir)](const std::string& text) {
      note_last_words(folder, text);
    });
  stop_.emplace(context_, shutdown_, run_dir_, *saver_, state_, saved.value_or(0));
  listeners_ = {&divergence_, &metrics_, pace_.get()};
  for (const auto& listener : between_steps_) listeners_.push_back(listener.get());
  listeners_.insert(listeners_.end(), {&*saver_, &*stop_});
}

// A run that has begun goes on without copies: with fewer hosts each one needs more memory for them.
void Trainer::open_copies(const checkpoint::Layout& layout, std::string shortage) {
  if (shortage.empty()) shortage = begin_copies(*disk_comm_, run_dir_);
  if (shortage.empty()) {
    copies_.emplace(context_, run_dir_, model_, layout);
  } else if (!run_dir_.goes_on()) {
    throw Shortage(shortage);
  } else if (context_.root()) {
    spdlog::warn("warning: {}: the run goes on without copies in memory", shortage);
  }
}

void Trainer::save(bool is_last) {
  steps_.profile().timed(Phase::checkpoint, [&] {
    const metrics::PhaseNote note = metrics_.note("saving");
    saver_->save(state_, is_last);
  });
}

Trainer::StopOrSave Trainer::wants() {
  StopOrSave all{.stop = shutdown_.requested(), .save = false};
  if (requests_) {
    const comm::ActivityScope looking(context_.activity, comm::ActivityKind::storage, "a look for requests");
    requests_->look();
    all.stop = all.stop || requests_->wants(RequestKind::stop);
    all.save = requests_->wants_any();
  }
  all.save = saver_->wants_save() || all.save;
  all.copy = copies_ && copies_->wants();
  return all;
}

Trainer::StopOrSave Trainer::agree() {
  const comm::ActivityScope waiting(context_.activity, comm::ActivityKind::wait,
                                    "all ranks at the end of the step");
  StopOrSave own = wants();
  if (context_.root()) {
    const comm::ActivityScope looking(context_.activity, comm::ActivityKind::storage, "a look at run.dir");
    own.folder_is_gone = !run_dir_.is_there();
  }
  const auto flag = [](bool value) { return value ? 1.0 : 0.0; };
  const std::vector<double> mine{flag(own.stop), flag(own.save), flag(own.copy), flag(own.folder_is_gone),
                                 flag(shutdown_.requested())};
  const std::vector<double> ranks = comm::all_reduce_sum(context_.mesh.world(), mine);
  if (requests_) requests_->agreed(state_.step);
  stopped_on_request_ = own.stop && !shutdown_.requested();
  signalled_ = ranks[4] > 0;
  steps_.answered();
  return {.stop = ranks[0] > 0, .save = ranks[1] > 0, .copy = ranks[2] > 0, .folder_is_gone = ranks[3] > 0};
}

// Log and metrics went with the folder. Saves what the ranks hold, so that the same command goes on.
int Trainer::rescue() {
  if (context_.root()) run_dir_.make_anew(state_.step);
  save(/*is_last=*/true);
  remove_copies();
  metrics_.close();
  steps_.profile().finish();
  if (!context_.root()) return exit_failed;
  const std::string name = checkpoint_name(state_.step);
  const std::string report = fmt::format(
      "run.dir: {} was deleted or moved while the run went on, and its log, metrics and checkpoints with it. "
      "The state of step {} is saved in {}, from which the same command goes on.",
      context_.job.run.dir, state_.step, (saver_->root() / name).string());
  spdlog::error("{}", report);
  end_run_dir({.how = RunPhase::failed, .step = state_.step, .checkpoint = name, .message = report});
  return exit_failed;
}

// In the main thread, which may then wait for the disk.
void Trainer::end_run_dir(const RunEnd& end) {
  if (!context_.root()) return;
  const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing end.json");
  run_dir_.end(end);
}

int Trainer::finish(bool stopped) {
  metrics_.close();
  steps_.profile().finish();
  const bool in_vain = !stopped && state_.skipped >= state_.step;
  remove_copies();
  const int stop_code = signalled_ ? exit_stopped : final_exit(exit_stopped);
  if (!context_.root()) return stopped ? stop_code : in_vain ? final_exit(exit_failed) : exit_done;
  const std::string name = checkpoint_name(state_.step);
  const std::string folder = (saver_->root() / name).string();
  if (!run_dir_.is_there()) {
    spdlog::error("run.dir: {} was deleted or moved while the run ended, and {} with it",
                  context_.job.run.dir, folder);
    return exit_failed;
  }
  if (in_vain) {
    const std::string report = fmt::format(
        "nothing was learned: all {} steps were skipped. The loss or the gradient was never finite, or "
        "no row had a token to learn (see the log's SKIPPED lines)",
        state_.step);
    spdlog::error("{}", report);
    end_run_dir({.how = RunPhase::failed, .step = state_.step, .checkpoint = name, .message = report});
    return final_exit(exit_failed);
  }
  end_run_dir(
      {.how = stopped ? RunPhase::stopped : RunPhase::finished, .step = state_.step, .checkpoint = name});
  if (stopped) {
    spdlog::info("stopped {} at step {}; saved {}. Run the same command to resume.",
                 stopped_on_request_ ? "on request" : "by a signal", state_.step, folder);
    return stop_code;
  }
  const std::string loss =
      state_.validation_loss ? fmt::format(", validation loss {:.4f} nats per token", *state_.validation_loss)
                             : "";
  spdlog::info("done: {} steps{}; checkpoint in {}", state_.step, loss, folder);
  return exit_done;
}

// What they hold is saved.
void Trainer::remove_copies() {
  if (copies_) copies_->finish();
  run_dir_.remove_copies();  // of an earlier start too
}

// The loss left its band and stayed away. No start goes on from here by itself.
std::optional<int> Trainer::give_up() {
  const std::optional<DivergedCheckpoints> left = saver_->save_diverged(state_);
  const bool back = goes_back(left);
  if (!back) remove_copies();
  metrics_.close();
  steps_.profile().finish();
  if (back && stop_agreed_) return stop_diverged(left);
  if (back) return std::nullopt;
  if (!left) return final_exit(exit_failed);
  const std::string report = divergence_.report(*left);
  spdlog::error("{}", report);
  end_run_dir({.how = RunPhase::diverged, .step = state_.step, .checkpoint = left->saved, .message = report});
  return final_exit(exit_failed);
}

// Rank 0 notes what the next Trainer skips. There is no way back if no state is from before the band was
// left, or if all rollbacks are used up. left: on rank 0. Collective.
bool Trainer::goes_back(const std::optional<DivergedCheckpoints>& left) {
  const int64_t done = std::ranges::count(run_dir_.rollbacks(), false, &Rollback::inherited);
  const bool back = left && done < context_.job.train.max_rollbacks &&
                    (!left->sound.empty() || run_dir_.has_copy_before(state_.above_since));
  if (back) {
    spdlog::warn("{}", divergence_.rollback_report(*left, done + 1));
    add_rollback(context_.job.run.dir,
                 {.diverged = state_.step, .above_since = state_.above_since, .skip_to = state_.next_sample});
    if (requests_ && requests_->answer_all(state_.step, left->saved, left->failure)) stop_agreed_ = true;
  }
  if (!comm::any(*disk_comm_, back)) return false;
  if (copies_) copies_->finish();
  stop_agreed_ = comm::any(*disk_comm_, stop_agreed_);
  return true;
}

// The run is to stop where it would go back: the next start does.
int Trainer::stop_diverged(const std::optional<DivergedCheckpoints>& left) {
  if (left) {
    spdlog::info("stopped at step {}. The same command goes back.", state_.step);
    end_run_dir(
        {.how = RunPhase::stopped, .step = state_.step, .checkpoint = left->sound.filename().string()});
  }
  return signalled_ ? exit_stopped : final_exit(exit_stopped);
}

int train_to_end(RunContext& context, const fault::Shutdown& shutdown) {
  for (;; context.goes_back = true) {
    if (const std::optional<int> code = Trainer(context, shutdown).run()) return *code;
  }
}

}  // namespace pptrain::app

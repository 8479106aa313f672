#include "app/train/trainer.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "app/data/datasets.h"
#include "app/data/token_files.h"
#include "app/rank/not_finite.h"
#include "app/rank/warm_up.h"
#include "app/run/run_log.h"
#include "app/train/divergence_report.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/seconds_since.h"
#include "core/metrics/memory.h"
#include "models/flops.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// PyTorch's clip_grad_norm_: scale by max_norm / (norm + 1e-6) where that is below 1.
double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

std::vector<OpenSource> open_sources(const RunContext& context, comm::Communicator& patient,
                                     const fault::Shutdown& shutdown) {
  const Wanted wanted = context.job.eval.interval > 0 ? Wanted::all : Wanted::training;
  const TokenFiles files = make_token_files(context, patient, wanted, [&] { return shutdown.requested(); });
  return open_data(context.job, context.model.vocab, files, wanted);
}

data::DataLoader open_training_data(const RunContext& context, const std::vector<OpenSource>& sources) {
  return {training_streams(sources), loader_options(context), context.job.data.shuffle,
          static_cast<uint64_t>(context.job.run.seed)};
}

void warn_of_no_targets(const std::vector<metrics::SourceLoss>& sources, int64_t step) {
  for (const metrics::SourceLoss& source : sources) {
    if (source.tokens == 0)
      spdlog::warn(
          "step {}: the validation data{} have no token to predict: all are prompts, first tokens of "
          "documents or padding. There is no loss of them",
          step, source.name.empty() ? "" : fmt::format(" of {}", source.name));
  }
}

// Of the checkpoint of a step, for those who look at the run's folder; before the first step there is none.
std::string name_of(int64_t step) {
  return step > 0 ? checkpoint::step_folder_name(step) : "";
}

}  // namespace

Trainer::Trainer(RunContext& context, const fault::Shutdown& shutdown)
    : context_(context),
      shutdown_(shutdown),
      run_dir_(context),
      listener_(listen_for_metrics(context)),
      disk_comm_(checkpoint::patient(context.mesh.world())),
      sources_(open_sources(context, *disk_comm_, shutdown)),
      model_(context),
      loader_(open_training_data(context, sources_)),
      executor_(model_.pipeline_stages(), context.mesh.along(mesh::Axis::pp), context.plan.schedule,
                pipeline::Executor::Mode::train),
      profile_(context, executor_),
      lr_(context.job.optimizer.lr, context.job.lr_schedule, context.job.train.steps),
      anomaly_(context.job.train.max_skipped_steps),
      divergence_({.steps = context.job.train.divergence_steps,
                   .window = context.job.train.divergence_window,
                   .width = context.job.train.divergence_band}) {
  executor_.report_to(context.report.activity, context.device);
  if (context.job.eval.interval > 0) evaluator_.emplace(context, model_, sources_);
  if (context.job.eval.generate_interval > 0) samples_.emplace(context, model_);
  if (context.job.optimizer.post_validation) {
    executor_.prepare_validation(context.plan.schedule);
    post_validation_.emplace(context, model_);
  }
  if (context.model.sparse.experts > 0) expert_loads_.emplace(context.mesh.world(), context.model);
  flops_per_token_ = models::flops_per_token(context.model, context.job.train.seq_len);
}

// Requests that have not been answered are taken back, and threads write what is left.
Trainer::~Trainer() {
  if (context_.report.activity != nullptr)
    context_.report.activity->set(comm::Doing::storage, "the end of the run");
}

int Trainer::run() {
  try {
    return train();
  } catch (const std::exception& error) {
    // Does not return where the quick stop has saved: then this is only another rank's leaving.
    quick_stop_.reset();
    end_run_dir({.how = "failed", .step = state_.step, .message = error.what()});
    throw;
  }
}

int Trainer::train() {
  start();
  const int64_t steps = context_.job.train.steps;
  if (state_.step >= steps) {
    if (context_.root()) {
      spdlog::info(
          "nothing to do: {} is at step {} of {}. Start over with --set checkpoint.resume=restart, or train "
          "on with a larger train.steps.",
          context_.job.run.dir, state_.step, steps);
      end_run_dir({.how = "finished", .step = state_.step, .checkpoint = name_of(state_.step)});
    }
    return 0;
  }
  warm_up();
  std::optional<double> eval_loss;
  bool stopped = false;
  while (state_.step < steps && !stopped) {
    under_way_ = state_.step + 1;
    profile_.begin_step(state_.step + 1);
    train_step();
    if (post_validation_ && post_validation_->pending()) continue;
    const bool last = state_.step == steps;
    eval_loss.reset();
    if (evaluator_ && (last || due(context_.job.eval.interval)))
      eval_loss = profile_.timed(Phase::evaluation, [&] { return evaluate(); });
    if (samples_ && due(context_.job.eval.generate_interval))
      profile_.timed(Phase::evaluation, [&] { samples_->log(state_.step); });
    const Wishes wishes = agree_on_wishes();
    const bool diverged = divergence_.diverged();
    stopped = wishes.stop && !last && !diverged;
    if (quick_stop_ && (last || stopped || diverged)) quick_stop_->stopping();
    if (diverged) return give_up();
    if (last || stopped || wishes.save || due(context_.job.checkpoint.interval)) {
      profile_.timed(Phase::checkpoint, [&] { save(last || stopped); });
    } else if (quick_stop_) {
      quick_stop_->saved();  // no save is due after all
    }
  }
  return finish(stopped, eval_loss);
}

void Trainer::warm_up() {
  if (context_.device.is_cpu()) return;
  const comm::ActivityScope warming(context_.report.activity, comm::Doing::work, "the warm-up");
  const auto begin = Clock::now();
  app::warm_up(context_, model_, loader_.step(state_.next_sample).microbatches);
  if (context_.root()) spdlog::info("every pass ran, to load its kernels: {:.1f} s", seconds_since(begin));
}

void Trainer::start() {
  try {
    checkpoint::probe_shared(*disk_comm_, fs::path(context_.job.run.dir) / "checkpoints");
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& error) {
    throw Error(fmt::format("run.dir: {}", error.what()));
  }
  resume();
  const std::string& chosen = run_dir_.checkpoint();
  if (chosen.empty()) {
    model_.initialise();
    state_ = {.seed = static_cast<uint64_t>(context_.job.run.seed)};
  } else {
    anomaly_.restore(state_.skipped_in_a_row, state_.skipped);
    divergence_.restore({state_.recent_losses, state_.losses_above, state_.above_since});
    resumed_at_ = state_.step;
  }
  const checkpoint::Layout layout = describe_layout(context_.plan, run_dir_.data());
  if (context_.root()) {
    run_dir_.begin(state_.step);
    open_log(context_.job.run.dir);
    announce(context_, sources_);
    if (!chosen.empty()) spdlog::info("resumed from {} at step {}", chosen, state_.step);
    open_sinks(layout);
    if (const auto& holder = run_dir_.holder()) requests_.emplace(context_.job.run.dir, *holder);
  }
  open_saver(layout);
  disk_comm_->barrier();
  open_log(context_.job.run.dir);
  listen();
}

// From the newest checkpoint that proves sound as it is loaded.
void Trainer::resume() {
  while (!run_dir_.checkpoint().empty()) {
    const std::string problem =
        checkpoint::load_on_all(*disk_comm_, run_dir_.checkpoint(), [&](const checkpoint::Reader& reader) {
          state_ = run_dir_.adopt(reader.state());
          model_.load(reader, *disk_comm_);
        });
    if (problem.empty()) return;
    run_dir_.pass_over(problem);
  }
}

void Trainer::open_saver(const checkpoint::Layout& layout) {
  const auto tell = [this](int64_t step, const fs::path& folder, const std::string& failure) {
    if (requests_) requests_->saved(step, folder.filename().string(), failure);
  };
  saver_.emplace(context_, *disk_comm_, model_,
                 checkpoint::SaveOptions{.root = fs::path(context_.job.run.dir) / "checkpoints",
                                         .layout = layout,
                                         .job_toml = {},
                                         .keep = run_dir_.begun_from(),
                                         .warn = {},
                                         .ended = tell},
                 state_, !run_dir_.checkpoint().empty());
}

void Trainer::open_sinks(const checkpoint::Layout& layout) {
  sinks_ = app::open_sinks(context_, run_dir_.header(state_.step, layout), so_far(), std::move(listener_));
  peak_rate_ = metrics::PeakRate(peak_flops_of_all(context_));
}

// What a record says of the run as a whole.
metrics::StepRecord Trainer::so_far() const {
  const int64_t saved = saver_ ? saver_->saved_step() : -1;
  return {.step = state_.step,
          .skipped_steps = state_.skipped,
          .total_tokens = state_.tokens,
          .saved_step = saved >= 0 ? std::optional(saved) : resumed_at_};
}

void Trainer::train_step() {
  const auto begin = Clock::now();
  state_.validation_loss.reset();  // that of the step before
  const Given given = run_pipeline();
  if (expert_loads_) expert_loads_->start(model_.take_expert_loads());
  profile_.timed(Phase::tied_gradients, [&] { model_.sum_tied_gradients(); });
  ++state_.step;
  const auto seconds = [&] {
    const double stalled = saver_->stalled_seconds();
    return Seconds{seconds_since(begin), data_wait_, stalled - std::exchange(stalled_, stalled)};
  };
  const double lr = lr_.at(state_.step - 1);
  const double unclipped = 1.0 / static_cast<double>(std::max<int64_t>(given.valid_tokens, 1));
  if (post_validation_ && post_validation_->confident() && !result_needed()) {
    profile_.timed(Phase::optimizer, [&] {
      post_validation_->start({.step = state_.step, .lr = lr, .grad_scale = unclipped},
                              shutdown_.requested() || saver_->is_late() || is_asked());
    });
    profile_.end_step();
    pending_given_ = given;
    pending_seconds_ = seconds();
    return;
  }
  const double loss = profile_.timed(Phase::loss, [&] { return model_.global_loss(); });
  const auto squares = profile_.timed(Phase::gradient_norm, [&] { return model_.squared_norm(); });
  const Step step =
      judge(loss, profile_.timed(Phase::norm_exchange, [&] { return model_.norm()(squares); }), given);
  if (quick_stop_) quick_stop_->begin_update(state_.step);
  if (step.applied) profile_.timed(Phase::optimizer, [&] { model_.apply(lr, step.grad_scale); });
  if (post_validation_) post_validation_->set_confident(step.applied && step.grad_scale == unclipped);
  profile_.end_step();
  settle(step, state_.step, given, seconds());
}

Trainer::Given Trainer::run_pipeline() {
  const auto begin = Clock::now();
  const data::Step step = profile_.timed(Phase::data, [&] { return loader_.step(state_.next_sample); });
  data_wait_ = seconds_since(begin);
  if (post_validation_ && post_validation_->pending()) {
    executor_.run(step.microbatches, [this] { return validate(); });
  } else {
    zero_gradients();
    executor_.run(step.microbatches);
  }
  state_.next_sample += step.samples;
  return {.valid_tokens = step.targets, .tokens = step.tokens, .padding = step.padding};
}

bool Trainer::validate() {
  const PostValidation::Pending pending = *post_validation_->pending();
  const PostValidation::Totals totals =
      profile_.timed(Phase::norm_exchange, [&] { return post_validation_->wait(); });
  bool stands = false;
  const auto correct = [&](const std::optional<double>& scale) {
    stands = profile_.timed(Phase::optimizer, [&] { return post_validation_->correct(scale); });
  };
  // A step that is not finite is taken back first: the weights are looked at as they were before it.
  const bool finite = std::isfinite(totals.loss) && std::isfinite(totals.norm);
  if (!finite) correct(std::nullopt);
  const Step step = judge(totals.loss, totals.norm, pending_given_);
  if (finite) correct(step.applied ? std::optional(step.grad_scale) : std::nullopt);
  settle(step, pending.step, pending_given_, pending_seconds_);
  zero_gradients();
  return stands;
}

void Trainer::zero_gradients() {
  profile_.timed(Phase::zero_gradients, [&] { model_.zero_grad(); });
}

Trainer::Step Trainer::judge(double loss, double norm, const Given& given) {
  const double tokens = static_cast<double>(std::max<int64_t>(given.valid_tokens, 1));
  Step step{.loss = loss / tokens, .norm = norm / tokens};
  // Every rank holds the same bits of loss and norm, so all take the same branch.
  const std::string where = find_not_finite(step.loss, step.norm);
  if (given.valid_tokens == 0 && where.empty()) {
    anomaly_.skip_empty();
    return step;
  }
  step.applied = anomaly_.accept(step.loss, step.norm, where);
  if (step.applied) step.grad_scale = clip_coefficient(step.norm, context_.job.train.grad_clip) / tokens;
  return step;
}

std::string Trainer::find_not_finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return "";
  const std::string where = describe_not_finite(context_.mesh.world(), model_.stages());
  if (!context_.root()) return where;
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing the log");
  spdlog::warn("not finite: loss {:.6g}, gradient norm {:.6g}; {}", loss, norm, where);
  return where;
}

void Trainer::settle(const Step& step, int64_t number, const Given& given, const Seconds& seconds) {
  state_.optimizer_step = model_.optimizer_step();
  state_.tokens += given.valid_tokens;
  state_.skipped = anomaly_.total();
  state_.skipped_in_a_row = anomaly_.in_a_row();
  if (step.applied) divergence_.take(number, step.loss);
  state_.recent_losses = divergence_.state().recent;
  state_.losses_above = divergence_.state().above;
  state_.above_since = divergence_.state().since;
  record(step, number, given, seconds, profile_.settle());
  if (quick_stop_) quick_stop_->finished(state_, may_save());
}

// Requests and the best losses are known to rank 0 alone, so that any step may be saved; but what only an
// evaluation comes between is left to a launcher in a hurry, and to the next step.
bool Trainer::may_save() const {
  const config::JobConfig& job = context_.job;
  const bool evaluates = due(job.eval.interval) || due(job.eval.generate_interval);
  const bool always_evaluates = job.eval.interval == 1 || job.eval.generate_interval == 1;
  return !evaluates || always_evaluates || job.checkpoint.keep_best_n > 0 || job.checkpoint.minutes > 0 ||
         due(job.checkpoint.interval) || state_.step == job.train.steps || divergence_.diverged();
}

bool Trainer::is_asked() {
  if (!requests_ || !may_save()) return false;
  const comm::ActivityScope looking(context_.report.activity, comm::Doing::storage, "a look for requests");
  requests_->look();
  return requests_->wants_any();
}

bool Trainer::result_needed() const {
  const config::JobConfig& job = context_.job;
  return state_.step == job.train.steps || due(job.eval.interval) || due(job.eval.generate_interval) ||
         due(job.checkpoint.interval) || divergence_.diverged() || post_validation_->is_urgent();
}

void Trainer::record(const Step& step, int64_t number, const Given& given, const Seconds& seconds,
                     const std::optional<metrics::Bubble>& bubble) {
  auto expert_loads = expert_loads_ ? expert_loads_->wait() : std::vector<metrics::ExpertLoad>{};
  if (!context_.root()) return;
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing metrics");
  const auto tokens = static_cast<double>(given.valid_tokens);
  const metrics::StepRecord run = so_far();
  metrics::StepRecord record{
      .step = number,
      .loss = tokens > 0 ? step.loss : std::numeric_limits<double>::quiet_NaN(),
      .grad_norm = step.norm,
      .lr = lr_.at(number - 1),
      .tokens = given.valid_tokens,
      .computed_tokens = given.tokens,
      .padding_tokens = given.padding,
      .tokens_per_s = tokens / seconds.whole,
      .step_time_s = seconds.whole,
      .mfu = peak_rate_.utilization(flops_per_token_ * tokens / seconds.whole),
      .memory_gb = static_cast<double>(metrics::peak_memory_bytes(context_.device)) / 1e9,
      .skipped = !step.applied,
      .skipped_steps = run.skipped_steps,
      .total_tokens = run.total_tokens,
      .epoch = static_cast<double>(state_.next_sample) / static_cast<double>(loader_.samples_per_epoch()),
      .data_wait_s = seconds.data_wait,
      .save_time_s = seconds.save,
      .saved_step = run.saved_step,
      .time = std::chrono::system_clock::now(),
      .bubble = bubble,
      .expert_loads = std::move(expert_loads),
  };
  if (sources_.size() > 1) {
    const std::vector<double> epochs = loader_.epochs(state_.next_sample);
    for (size_t i = 0; i < epochs.size(); ++i) record.source_epochs.emplace_back(sources_[i].name, epochs[i]);
  }
  for (const auto& sink : sinks_) sink->step(record);
}

std::optional<double> Trainer::evaluate() {
  const metrics::PhaseNote note(sinks_, "evaluating");
  const auto begin = Clock::now();
  Evaluator::Result result = evaluator_->run();
  const double loss = result.all.loss();
  if (context_.root()) warn_of_no_targets(result.sources, state_.step);
  if (result.all.tokens == 0) return std::nullopt;         // no loss, and none that could be the best
  if (result.sources.size() == 1) result.sources.clear();  // it is all
  std::erase_if(result.sources, [](const metrics::SourceLoss& source) { return source.tokens == 0; });
  const metrics::EvalRecord record{.step = state_.step,
                                   .loss = loss,
                                   .tokens = result.all.tokens,
                                   .time_s = seconds_since(begin),
                                   .sources = std::move(result.sources),
                                   .time = std::chrono::system_clock::now()};
  for (const auto& sink : sinks_) sink->eval(record);
  if (std::isfinite(loss)) state_.validation_loss = loss;
  return loss;
}

void Trainer::save(bool is_last) {
  const metrics::PhaseNote note(sinks_, "saving");
  saver_->save(state_, is_last);
  if (quick_stop_) quick_stop_->saved();
}

void Trainer::listen() {
  under_way_ = state_.step + 1;
  // A step that post-validation may still take back is no state to save; a GPU's stream is not waited for
  // here.
  stops_quickly_ = patience_.time && !post_validation_ && context_.device.is_cpu();
  if (context_.root())
    stop_listener_.emplace(shutdown_, [this](const fault::StopRequest& request) { tell_of(request); });
  if (!stops_quickly_) return;
  quick_stop_.emplace(
      context_.mesh.world(), shutdown_, *patience_.time, state_,
      [this](comm::Communicator& world, const checkpoint::RunState& state) {
        saved_quickly_ = state.step;
        return saver_->save_quickly(world, state);
      },
      [this] {
        if (context_.root())
          run_dir_.end({.how = "stopped", .step = saved_quickly_, .checkpoint = name_of(saved_quickly_)});
        if (context_.report.take_leave) context_.report.take_leave();
      },
      context_.report.summons);
  if (context_.root() && !patience_.advice.empty()) spdlog::info("{}", patience_.advice);
}

void Trainer::tell_of(const fault::StopRequest& request) const {
  if (request.notice) return;  // it may mean nothing
  const std::string signal = fault::signal_name(request.signal);
  if (request.from_launcher && stops_quickly_) {
    spdlog::info("{} from the launcher: saving the last finished step", signal);
  } else {
    spdlog::info("{}: finishing step {}, then saving; {} to stop at once", signal, under_way_.load(),
                 request.signal == SIGINT ? "press again" : "send SIGINT twice");
  }
}

Trainer::Wishes Trainer::agree_on_wishes() {
  const comm::ActivityScope waiting(context_.report.activity, comm::Doing::wait,
                                    "all ranks at the end of the step");
  const bool asked = is_asked();
  const bool stop = shutdown_.requested() || (asked && requests_->wants(RequestKind::stop));
  const bool save = saver_->is_late() || saver_->is_among_best(state_) || asked;
  const std::vector<double> mine{stop ? 1.0 : 0.0, save ? 1.0 : 0.0};
  const std::vector<double> ranks = comm::all_reduce_sum(context_.mesh.world(), mine);
  if (asked) requests_->agreed(state_.step);
  stopped_on_request_ = stop && !shutdown_.requested();
  if (post_validation_) post_validation_->answered();
  return {.stop = ranks[0] > 0, .save = ranks[1] > 0};
}

// In the main thread, which may wait for the disk then.
void Trainer::end_run_dir(const RunEnd& end) {
  if (!context_.root()) return;
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing end.json");
  run_dir_.end(end);
}

void Trainer::close_sinks() {
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing metrics");
  for (const auto& sink : sinks_) sink->end();
  sinks_.clear();
}

int Trainer::finish(bool stopped, const std::optional<double>& eval_loss) {
  close_sinks();
  profile_.finish();
  if (!context_.root()) return stopped ? exit_stopped : exit_done;
  const std::string folder = (saver_->root() / name_of(state_.step)).string();
  end_run_dir(
      {.how = stopped ? "stopped" : "finished", .step = state_.step, .checkpoint = name_of(state_.step)});
  if (stopped) {
    spdlog::info("stopped {} at step {}; saved {}. Run the same command to resume.",
                 stopped_on_request_ ? "on request" : "by a signal", state_.step, folder);
    return exit_stopped;
  }
  if (eval_loss) {
    spdlog::info("done: {} steps, validation loss {:.4f} nats per token; checkpoint in {}", state_.step,
                 *eval_loss, folder);
  } else {
    spdlog::info("done: {} steps; checkpoint in {}", state_.step, folder);
  }
  return 0;
}

// The loss left its band and stayed away. Nobody goes on from here by himself.
int Trainer::give_up() {
  const std::optional<DivergedCheckpoints> left = saver_->save_diverged(state_);
  close_sinks();
  profile_.finish();
  if (!left) return exit_failed;
  const std::string report = describe_divergence(state_.step, divergence_.describe(), *left);
  spdlog::error("{}", report);
  end_run_dir({.how = "diverged", .step = state_.step, .checkpoint = left->saved, .message = report});
  return exit_failed;
}

}  // namespace pptrain::app

#include "app/train/trainer.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "app/train/datasets.h"
#include "app/train/run_log.h"
#include "app/train/token_files.h"
#include "core/base/error.h"
#include "core/config/loader.h"
#include "core/config/warnings.h"
#include "core/kernels/device_name.h"
#include "core/metrics/jsonl_sink.h"
#include "core/metrics/memory.h"
#include "core/metrics/peak_flops.h"
#include "core/metrics/step_text.h"
#include "core/metrics/terminal_sinks.h"
#include "models/flops.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

checkpoint::Layout describe_layout(const Plan& plan) {
  return {{"pp", fmt::to_string(plan.mesh.pp)},
          {"dp_replicate", fmt::to_string(plan.mesh.dp_replicate)},
          {"dp_shard", fmt::to_string(plan.mesh.dp_shard)},
          {"cp", fmt::to_string(plan.mesh.cp)},
          {"tp", fmt::to_string(plan.mesh.tp)},
          {"ep", fmt::to_string(plan.mesh.ep)},
          {"pp_schedule", plan.job.distributed.pp_schedule},
          {"layers_per_stage", fmt::format("{}", fmt::join(pipeline::layers_per_stage(plan.layers), ","))},
          {"seq_len", fmt::to_string(plan.job.train.seq_len)}};
}

}  // namespace

Trainer::Trainer(RunContext& context, const fault::Shutdown& shutdown)
    : context_(context),
      shutdown_(shutdown),
      checkpoint_root_(fs::path(context.job.run.dir) / "checkpoints"),
      run_dir_(context),
      disk_comm_(checkpoint::patient(context.mesh.world())),
      sources_(open_sources(context, *disk_comm_, shutdown)),
      model_(context),
      loader_(open_training_data(context, sources_)),
      executor_(model_.stages(), context.mesh.along(mesh::Axis::pp), context.plan.schedule,
                pipeline::Executor::Mode::train),
      profile_(context, executor_),
      lr_(context.job.optimizer.lr, context.job.lr_schedule, context.job.train.steps),
      anomaly_(context.job.train.max_skipped_steps) {
  executor_.on_stage_actions(model_.stage_actions());
  executor_.report_to(context.report.activity);
  if (context.job.eval.interval > 0) evaluator_.emplace(context, model_, sources_);
  if (context.job.eval.generate_interval > 0) samples_.emplace(context, model_);
  if (context.job.optimizer.post_validation) post_validation_.emplace(context, model_);
  if (context.model.sparse.experts > 0) expert_loads_.emplace(context.mesh.world(), context.model);
  flops_per_token_ = models::flops_per_token(context.model, context.job.train.seq_len);
}

Trainer::~Trainer() = default;

int Trainer::run() {
  start();
  const int64_t steps = context_.job.train.steps;
  if (state_.step >= steps) {
    if (context_.root()) {
      spdlog::info(
          "nothing to do: {} is at step {} of {}. Start over with --set checkpoint.resume=restart, or train "
          "on with a larger train.steps.",
          context_.job.run.dir, state_.step, steps);
    }
    return 0;
  }
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
    stopped = wishes.stop && !last;
    if (quick_stop_ && (last || stopped)) quick_stop_->stopping();
    if (last || stopped || wishes.save || due(context_.job.checkpoint.interval)) {
      profile_.timed(Phase::checkpoint, [&] { save(last || stopped); });
    } else if (quick_stop_) {
      quick_stop_->saved();  // no save is due after all
    }
  }
  return finish(stopped, eval_loss);
}

void Trainer::start() {
  try {
    checkpoint::probe_shared(*disk_comm_, checkpoint_root_);
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
    saved_step_ = state_.step;
  }
  if (context_.root()) {
    run_dir_.begin(state_.step);
    open_log(context_.job.run.dir);
    announce();
    if (!chosen.empty()) spdlog::info("resumed from {} at step {}", chosen, state_.step);
    open_sinks();
  }
  open_saver();
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

checkpoint::Layout Trainer::layout() const {
  checkpoint::Layout layout = describe_layout(context_.plan);
  layout["data"] = run_dir_.data();
  return layout;
}

checkpoint::SaveOptions Trainer::save_options() const {
  return {.root = checkpoint_root_,
          .layout = layout(),
          .job_toml = config::to_toml(context_.job),
          .keep_last_n = context_.job.checkpoint.keep_last_n,
          .keep = run_dir_.begun_from(),
          .warn = {}};
}

void Trainer::open_saver() {
  saver_.emplace(*disk_comm_, save_options(), context_.job.checkpoint.async);
  model_.before_change([this] { saver_->protect(); });
  saved_at_ = Clock::now();
}

void Trainer::announce() const {
  const config::JobConfig& job = context_.job;
  spdlog::info("pptrain: {} of {:.2f} M parameters, {} on {} x {} rank{}, {}", job.model.arch,
               static_cast<double>(models::parameter_count(context_.model)) / 1e6,
               context_.mesh.shape().describe(), context_.mesh.shape().world_size(), context_.device.str(),
               context_.mesh.shape().world_size() == 1 ? "" : "s", job.train.dtype);
  const int data_ranks = context_.mesh.size(mesh::Group::batch);
  spdlog::info("schedule {}, layers per stage {}, {} microbatches of {}{} x {} tokens a step{}",
               job.distributed.pp_schedule, fmt::join(pipeline::layers_per_stage(context_.plan.layers), "+"),
               job.train.grad_accum_steps, job.data.lengths == "fixed" ? "" : "at most ",
               job.train.micro_batch_size, job.train.seq_len,
               data_ranks > 1 ? fmt::format(" on each of {} data ranks", data_ranks) : "");
  for (const OpenSource& source : sources_) {
    if (sources_.size() > 1)
      spdlog::info("source {}: weight {:g}, {} tokens", source.name, source.weight,
                   metrics::with_commas(source.train->size()));
  }
  spdlog::info("output in {}", job.run.dir);
  for (const std::string& warning : config::warnings(job)) spdlog::warn("warning: {}", warning);
}

void Trainer::open_sinks() {
  const config::JobConfig& job = context_.job;
  sinks_.push_back(std::make_unique<metrics::JsonlSink>(fs::path(job.run.dir) / "metrics.jsonl",
                                                        run_dir_.header(state_.step, layout())));
  sinks_.push_back(std::make_unique<metrics::LineSink>(job.metrics.log_interval, job.train.steps));
  if (auto console = metrics::console_of_log(); console && metrics::terminal_columns())
    sinks_.push_back(std::make_unique<metrics::BarSink>(std::move(console), state_.step, job.train.steps));
  const double each = job.metrics.peak_tflops > 0
                          ? job.metrics.peak_tflops * 1e12
                          : metrics::peak_flops(context_.device, job.train.dtype == "bf16");
  peak_flops_ = each * context_.mesh.shape().world_size();
  if (peak_flops_ == 0)
    spdlog::warn("mfu is not known: there is no peak rate for {} here. Give metrics.peak_tflops",
                 kernels::device_name(context_.device));
}

void Trainer::train_step() {
  const auto begin = Clock::now();
  const Given given = run_pipeline();
  if (expert_loads_) expert_loads_->start(model_.take_expert_loads());
  profile_.timed(Phase::tied_gradients, [&] { model_.sum_tied_gradients(); });
  ++state_.step;
  const auto seconds = [&] {
    const double stalled = saver_->stalled_seconds();
    return Seconds{seconds_since(begin), data_wait_, stalled - std::exchange(stalled_, stalled)};
  };
  const double lr = lr_.at(state_.step - 1);
  const double unclipped = 1.0 / static_cast<double>(std::max<int64_t>(given.targets, 1));
  if (post_validation_ && post_validation_->confident() && !result_needed()) {
    profile_.timed(Phase::optimizer, [&] {
      post_validation_->start({.step = state_.step, .lr = lr, .grad_scale = unclipped},
                              shutdown_.requested() || save_is_late());
    });
    profile_.end_step();
    pending_given_ = given;
    pending_seconds_ = seconds();
    return;
  }
  const pipeline::LossSum loss = profile_.timed(Phase::loss, [&] { return model_.global_loss(); });
  const auto squares = profile_.timed(Phase::gradient_norm, [&] { return model_.squared_norm(); });
  const Step step = judge(loss, profile_.timed(Phase::norm_exchange, [&] { return model_.norm()(squares); }));
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
  return {.targets = step.targets, .tokens = step.tokens, .padding = step.padding};
}

bool Trainer::validate() {
  const PostValidation::Pending pending = *post_validation_->pending();
  const PostValidation::Totals totals =
      profile_.timed(Phase::norm_exchange, [&] { return post_validation_->wait(); });
  const Step step = judge(totals.loss, totals.norm);
  const std::optional<double> scale = step.applied ? std::optional(step.grad_scale) : std::nullopt;
  const bool stands = profile_.timed(Phase::optimizer, [&] { return post_validation_->correct(scale); });
  settle(step, pending.step, pending_given_, pending_seconds_);
  zero_gradients();
  return stands;
}

void Trainer::zero_gradients() {
  profile_.timed(Phase::zero_gradients, [&] { model_.zero_grad(); });
}

Trainer::Step Trainer::judge(const pipeline::LossSum& loss, double norm) {
  const double tokens = static_cast<double>(std::max<int64_t>(loss.tokens, 1));
  Step step{.loss = loss, .norm = norm / tokens};
  // Every rank holds the same bits of loss and norm, so all take the same branch.
  const std::string where = find_not_finite(loss.loss / tokens, step.norm);
  step.applied = anomaly_.accept(loss.loss / tokens, step.norm, where);
  if (step.applied) step.grad_scale = clip_coefficient(step.norm, context_.job.train.grad_clip) / tokens;
  return step;
}

std::string Trainer::find_not_finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return "";
  const std::string where = describe_not_finite(context_.mesh.world(), model_.stage_parameters());
  if (context_.root()) spdlog::warn("not finite: loss {:.6g}, gradient norm {:.6g}; {}", loss, norm, where);
  return where;
}

void Trainer::settle(const Step& step, int64_t number, const Given& given, const Seconds& seconds) {
  state_.optimizer_step = model_.optimizer_step();
  state_.tokens += step.loss.tokens;
  state_.skipped = anomaly_.total();
  state_.skipped_in_a_row = anomaly_.in_a_row();
  record(step, number, given, seconds, profile_.settle());
  if (quick_stop_)
    quick_stop_->finished(state_, number == context_.job.train.steps ||
                                      due(context_.job.checkpoint.interval) ||
                                      context_.job.checkpoint.minutes > 0);
}

bool Trainer::result_needed() const {
  const config::JobConfig& job = context_.job;
  return state_.step == job.train.steps || due(job.eval.interval) || due(job.eval.generate_interval) ||
         due(job.checkpoint.interval) || post_validation_->is_urgent();
}

void Trainer::record(const Step& step, int64_t number, const Given& given, const Seconds& seconds,
                     const std::optional<metrics::Bubble>& bubble) {
  auto expert_loads = expert_loads_ ? expert_loads_->wait() : std::vector<metrics::ExpertLoad>{};
  if (!context_.root()) return;
  const double tokens = static_cast<double>(step.loss.tokens);
  metrics::StepRecord record{
      .step = number,
      .loss = step.loss.loss / std::max(tokens, 1.0),
      .grad_norm = step.norm,
      .lr = lr_.at(number - 1),
      .tokens = step.loss.tokens,
      .computed_tokens = given.tokens,
      .padding_tokens = given.padding,
      .tokens_per_s = tokens / seconds.whole,
      .step_time_s = seconds.whole,
      .mfu = peak_flops_ > 0 ? flops_per_token_ * tokens / seconds.whole / peak_flops_ : 0,
      .memory_gb = static_cast<double>(metrics::peak_memory_bytes(context_.device)) / 1e9,
      .skipped = !step.applied,
      .total_tokens = state_.tokens,
      .epoch = static_cast<double>(state_.next_sample) / static_cast<double>(loader_.samples_per_epoch()),
      .data_wait_s = seconds.data_wait,
      .save_time_s = seconds.save,
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
  const double loss = result.all.loss / static_cast<double>(std::max<int64_t>(result.all.tokens, 1));
  if (result.sources.size() == 1) result.sources.clear();  // it is all
  const metrics::EvalRecord record{.step = state_.step,
                                   .loss = loss,
                                   .tokens = result.all.tokens,
                                   .time_s = seconds_since(begin),
                                   .sources = std::move(result.sources),
                                   .time = std::chrono::system_clock::now()};
  for (const auto& sink : sinks_) sink->eval(record);
  return loss;
}

// The last save of a run must succeed; one before it that fails is told, and the next may succeed. What the
// memory lost since the last update is found before anything of it is saved.
void Trainer::save(bool is_last) {
  const metrics::PhaseNote note(sinks_, "saving");
  if (std::exchange(saved_step_, state_.step) != state_.step) {
    model_.check_weights();
    saver_->start(state_, model_.contents(), is_last);
  }
  if (quick_stop_) quick_stop_->saved();
  if (is_last) saver_->finish();
  saved_at_ = Clock::now();
}

void Trainer::listen() {
  under_way_ = state_.step + 1;
  if (context_.root())
    stop_listener_.emplace(shutdown_, [this](const fault::StopRequest& request) { tell_of(request); });
  // A step that post-validation may still take back is no state to save; a GPU's stream is not waited for
  // here.
  const bool possible = !post_validation_ && context_.device.is_cpu();
  if (!patience_.time || !possible) return;
  quick_stop_.emplace(
      context_.mesh.world(), shutdown_, *patience_.time, state_,
      [this](comm::Communicator& world, const checkpoint::RunState& state) {
        return save_quickly(world, state);
      },
      context_.report.take_leave);
  if (context_.root() && !patience_.advice.empty()) spdlog::info("{}", patience_.advice);
}

void Trainer::tell_of(const fault::StopRequest& request) const {
  if (request.notice) return;  // it may mean nothing
  const std::string signal = fault::signal_name(request.signal);
  if (request.from_launcher && quick_stop_) {
    spdlog::info("{} from the launcher: saving the last finished step", signal);
  } else {
    spdlog::info("{}: finishing step {}, then saving; {} to stop at once", signal, under_way_.load(),
                 request.signal == SIGINT ? "press again" : "send SIGINT twice");
  }
}

// What the saver has under way is of this step, or of an earlier one: it ends first.
std::string Trainer::save_quickly(comm::Communicator& world, const checkpoint::RunState& state) {
  if (state.step == 0) return "no step was finished, so there is nothing to save";
  bool saved = saved_step_ == state.step;
  try {
    saver_->finish();
  } catch (const checkpoint::NotSaved&) {
    saved = false;
  }
  if (!saved) {
    model_.check_weights();
    checkpoint::save(world, save_options(), state, model_.contents());
  }
  saved_step_ = state.step;
  return fmt::format("step {} is saved in {}", state.step, checkpoint_root_.string());
}

bool Trainer::save_is_late() const {
  const double minutes = context_.job.checkpoint.minutes;
  return context_.root() && minutes > 0 && seconds_since(saved_at_) >= 60 * minutes;
}

Trainer::Wishes Trainer::agree_on_wishes() {
  const comm::ActivityScope waiting(context_.report.activity, comm::Doing::wait,
                                    "all ranks at the end of the step");
  const std::vector<double> mine{shutdown_.requested() ? 1.0 : 0.0, save_is_late() ? 1.0 : 0.0};
  const std::vector<double> ranks = comm::all_reduce_sum(context_.mesh.world(), mine);
  if (post_validation_) post_validation_->answered();
  return {.stop = ranks[0] > 0, .save = ranks[1] > 0};
}

int Trainer::finish(bool stopped, const std::optional<double>& eval_loss) {
  sinks_.clear();
  profile_.finish();
  if (!context_.root()) return stopped ? 3 : 0;
  const fs::path folder = checkpoint_root_ / checkpoint::step_folder_name(state_.step);
  if (stopped) {
    spdlog::info("stopped by a signal at step {}; saved {}. Run the same command to resume.", state_.step,
                 folder.string());
    return 3;
  }
  if (eval_loss) {
    spdlog::info("done: {} steps, validation loss {:.4f} nats per token; checkpoint in {}", state_.step,
                 *eval_loss, folder.string());
  } else {
    spdlog::info("done: {} steps; checkpoint in {}", state_.step, folder.string());
  }
  return 0;
}

}  // namespace pptrain::app

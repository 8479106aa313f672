#include "app/train/trainer.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "app/train/datasets.h"
#include "app/train/run_dir.h"
#include "core/base/error.h"
#include "core/config/loader.h"
#include "core/metrics/memory.h"
#include "core/metrics/peak_flops.h"
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

// Whether somebody watches standard output. Open MPI's ranks write to a terminal of their own, which has a
// size only where mpirun itself runs on one.
bool on_terminal() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
}

// PyTorch's clip_grad_norm_: scale by max_norm / (norm + 1e-6) where that is below 1.
double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

data::DataLoader open_training_data(const RunContext& context) {
  return {open_data(context.job, context.model.vocab).train, loader_options(context),
          context.job.data.shuffle, static_cast<uint64_t>(context.job.run.seed)};
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
      model_(context),
      loader_(open_training_data(context)),
      executor_(model_.stages(), context.mesh.along(mesh::Axis::pp), context.plan.schedule,
                pipeline::Executor::Mode::train),
      profile_(context, executor_),
      lr_(context.job.optimizer.lr, context.job.lr_schedule, context.job.train.steps),
      anomaly_(context.job.train.max_skipped_steps) {
  executor_.on_stage_actions(model_.stage_actions());
  if (context.job.eval.interval > 0) evaluator_.emplace(context, model_);
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
          "nothing to do: {} is at step {} of {}. Start anew with --set checkpoint.resume=none, or train on "
          "with a larger train.steps.",
          context_.job.run.dir, state_.step, steps);
    }
    return 0;
  }
  std::optional<double> eval_loss;
  bool stopped = false;
  while (state_.step < steps && !stopped) {
    profile_.begin_step(state_.step + 1);
    train_step();
    if (post_validation_ && post_validation_->pending()) continue;
    const bool last = state_.step == steps;
    eval_loss.reset();
    if (evaluator_ && (last || due(context_.job.eval.interval)))
      eval_loss = profile_.timed(Phase::evaluation, [&] { return evaluate(); });
    stopped = stop_requested() && !last;
    if (last || stopped || due(context_.job.checkpoint.interval))
      profile_.timed(Phase::checkpoint, [&] { return save(); });
  }
  return finish(stopped, eval_loss);
}

void Trainer::start() {
  std::string chosen;
  if (context_.root()) {
    if (const auto path = choose_checkpoint(context_.job)) chosen = path->string();
  }
  chosen = comm::broadcast_string(context_.mesh.world(), chosen, 0);
  if (chosen.empty()) {
    model_.initialise();
    state_.seed = static_cast<uint64_t>(context_.job.run.seed);
  } else {
    const checkpoint::Reader reader(chosen);
    state_ = reader.state();
    if (state_.seed != static_cast<uint64_t>(context_.job.run.seed)) {
      throw Error(fmt::format(
          "run.seed is {}, but {} was trained with seed {}: its data order cannot be continued. Set "
          "run.seed = {}, or start anew with checkpoint.resume = \"none\".",
          context_.job.run.seed, chosen, state_.seed, state_.seed));
    }
    const auto seq_len = reader.layout().find("seq_len");
    if (context_.root() && seq_len != reader.layout().end() &&
        seq_len->second != fmt::to_string(context_.job.train.seq_len)) {
      spdlog::warn(
          "train.seq_len was {} in {}: samples are cut anew, so this run does not continue the same data "
          "order",
          seq_len->second, chosen);
    }
    model_.load(reader);
    anomaly_.restore(state_.skipped_in_a_row, state_.skipped);
    saved_step_ = state_.step;
  }
  if (context_.root()) {
    set_aside_later_checkpoints(checkpoint_root_, state_.step);
    prepare_run_dir(context_.job);
    announce();
    if (!chosen.empty()) spdlog::info("resumed from {} at step {}", chosen, state_.step);
    open_sinks();
  }
  context_.mesh.world().barrier();
}

void Trainer::announce() const {
  const config::JobConfig& job = context_.job;
  spdlog::info("pptrain: {} of {:.2f} M parameters, {} on {} x {} rank{}, {}", job.model.arch,
               static_cast<double>(models::parameter_count(context_.model)) / 1e6,
               context_.mesh.shape().describe(), context_.mesh.shape().world_size(), context_.device.str(),
               context_.mesh.shape().world_size() == 1 ? "" : "s", job.train.dtype);
  const int data_ranks = context_.mesh.size(mesh::Group::batch);
  spdlog::info("schedule {}, layers per stage {}, {} microbatches of {} x {} tokens a step{}",
               job.distributed.pp_schedule, fmt::join(pipeline::layers_per_stage(context_.plan.layers), "+"),
               job.train.grad_accum_steps, job.train.micro_batch_size, job.train.seq_len,
               data_ranks > 1 ? fmt::format(" on each of {} data ranks", data_ranks) : "");
  spdlog::info("output in {}", job.run.dir);
}

void Trainer::open_sinks() {
  const config::JobConfig& job = context_.job;
  sinks_.push_back(
      std::make_unique<metrics::JsonlSink>(fs::path(job.run.dir) / "metrics.jsonl", state_.step));
  if (on_terminal()) {
    sinks_.push_back(std::make_unique<metrics::ProgressSink>(stdout, state_.step, job.train.steps));
  } else {
    sinks_.push_back(std::make_unique<metrics::LineSink>(stdout, job.metrics.log_interval, job.train.steps));
  }
  const double each = job.metrics.peak_tflops > 0
                          ? job.metrics.peak_tflops * 1e12
                          : metrics::peak_flops(context_.device, job.train.dtype == "bf16");
  peak_flops_ = each * context_.mesh.shape().world_size();
}

void Trainer::train_step() {
  const auto begin = Clock::now();
  const int64_t targets = run_pipeline();
  if (expert_loads_) expert_loads_->start(model_.take_expert_loads());
  profile_.timed(Phase::tied_gradients, [&] { model_.sum_tied_gradients(); });
  ++state_.step;
  state_.next_sample += loader_.samples_per_step();
  const double lr = lr_.at(state_.step - 1);
  const double unclipped = 1.0 / static_cast<double>(targets);
  if (post_validation_ && post_validation_->confident() && !result_needed()) {
    profile_.timed(Phase::optimizer, [&] {
      post_validation_->start({.step = state_.step, .lr = lr, .grad_scale = unclipped},
                              shutdown_.requested());
    });
    profile_.end_step();
    pending_seconds_ = seconds_since(begin);
    return;
  }
  const pipeline::LossSum loss = profile_.timed(Phase::loss, [&] { return model_.global_loss(); });
  const auto squares = profile_.timed(Phase::gradient_norm, [&] { return model_.squared_norm(); });
  const Step step = judge(loss, profile_.timed(Phase::norm_exchange, [&] { return model_.norm()(squares); }));
  if (step.applied) profile_.timed(Phase::optimizer, [&] { model_.apply(lr, step.grad_scale); });
  if (post_validation_) post_validation_->set_confident(step.applied && step.grad_scale == unclipped);
  profile_.end_step();
  settle(step, state_.step, seconds_since(begin));
}

int64_t Trainer::run_pipeline() {
  const data::Step step = profile_.timed(Phase::data, [&] { return loader_.step(state_.next_sample); });
  if (post_validation_ && post_validation_->pending()) {
    executor_.run(step.microbatches, [this] { return validate(); });
  } else {
    zero_gradients();
    executor_.run(step.microbatches);
  }
  return step.targets;
}

bool Trainer::validate() {
  const PostValidation::Pending pending = *post_validation_->pending();
  const PostValidation::Totals totals =
      profile_.timed(Phase::norm_exchange, [&] { return post_validation_->wait(); });
  const Step step = judge(totals.loss, totals.norm);
  const std::optional<double> scale = step.applied ? std::optional(step.grad_scale) : std::nullopt;
  const bool stands = profile_.timed(Phase::optimizer, [&] { return post_validation_->correct(scale); });
  settle(step, pending.step, pending_seconds_);
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

void Trainer::settle(const Step& step, int64_t number, double seconds) {
  state_.optimizer_step = model_.optimizer_step();
  state_.tokens += step.loss.tokens;
  state_.skipped = anomaly_.total();
  state_.skipped_in_a_row = anomaly_.in_a_row();
  record(step, number, seconds, profile_.settle());
}

bool Trainer::result_needed() const {
  const config::JobConfig& job = context_.job;
  return state_.step == job.train.steps || due(job.eval.interval) || due(job.checkpoint.interval) ||
         post_validation_->stop_requested();
}

void Trainer::record(const Step& step, int64_t number, double seconds,
                     const std::optional<metrics::Bubble>& bubble) {
  auto expert_loads = expert_loads_ ? expert_loads_->wait() : std::vector<metrics::ExpertLoad>{};
  if (!context_.root()) return;
  const double tokens = static_cast<double>(step.loss.tokens);
  const metrics::StepRecord record{
      .step = number,
      .loss = step.loss.loss / std::max(tokens, 1.0),
      .grad_norm = step.norm,
      .lr = lr_.at(number - 1),
      .tokens = step.loss.tokens,
      .tokens_per_s = tokens / seconds,
      .step_time_s = seconds,
      .mfu = flops_per_token_ * tokens / seconds / peak_flops_,
      .memory_gb = static_cast<double>(metrics::peak_memory_bytes(context_.device)) / 1e9,
      .skipped = !step.applied,
      .bubble = bubble,
      .expert_loads = std::move(expert_loads),
  };
  for (const auto& sink : sinks_) sink->step(record);
}

std::optional<double> Trainer::evaluate() {
  const auto begin = Clock::now();
  const pipeline::LossSum sum = evaluator_->run();
  const double loss = sum.loss / static_cast<double>(std::max<int64_t>(sum.tokens, 1));
  const metrics::EvalRecord record{
      .step = state_.step, .loss = loss, .tokens = sum.tokens, .time_s = seconds_since(begin)};
  for (const auto& sink : sinks_) sink->eval(record);
  return loss;
}

fs::path Trainer::save() {
  const fs::path folder = checkpoint_root_ / checkpoint::step_folder_name(state_.step);
  if (saved_step_ == state_.step) return folder;
  model_.check_weights();
  checkpoint::save(context_.mesh.world(), checkpoint_root_, state_, describe_layout(context_.plan),
                   config::to_toml(context_.job), model_.contents(), context_.job.checkpoint.keep_last_n);
  saved_step_ = state_.step;
  return folder;
}

bool Trainer::stop_requested() {
  return comm::any(context_.mesh.world(), shutdown_.requested());
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

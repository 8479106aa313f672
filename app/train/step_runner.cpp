#include "app/train/step_runner.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/rank/not_finite.h"
#include "core/base/log.h"
#include "core/base/timing.h"
#include "core/metrics/memory.h"
#include "core/metrics/progress_text.h"
#include "core/optim/lr_schedule.h"

namespace pptrain::app {

using Clock = std::chrono::steady_clock;

namespace {

// As PyTorch's clip_grad_norm_: scale by max_norm / (norm + 1e-6) if that is below 1.
double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

// The divisor of sums over a step's valid tokens.
double divisor(const StepResult& step) {
  return static_cast<double>(std::max<int64_t>(step.valid_tokens, 1));
}

// Tokens of whole lists, of which ranks may have parts.
std::vector<int64_t> tokens_of(std::span<const data::Microbatch> microbatches) {
  std::vector<int64_t> tokens;
  for (const data::Microbatch& microbatch : microbatches) tokens.push_back(microbatch.segments.tokens());
  return tokens;
}

void log_memory(int64_t step, at::Device device) {
  log_of(Subsystem::memory)
      .debug("before step {}: {} MB resident in this process, at most {} MB {}", step,
             metrics::resident_memory_bytes() / 1'000'000, metrics::peak_memory_bytes(device) / 1'000'000,
             device.is_cpu() ? "so far" : "of the GPU so far");
}

}  // namespace

// The loads of a step's experts, summed over all ranks in the background.
class LoadSum {
 public:
  // Collective over `world`, which must outlive this. model: one with sparse layers.
  LoadSum(comm::Communicator& world, const models::ModelConfig& model) : group_(world.host().duplicate()) {
    for (int layer = 0; layer < model.layers; ++layer) {
      if (model.sparse.contains(layer)) layers_.push_back(layer);
    }
    loads_ = at::zeros({static_cast<int64_t>(layers_.size()), model.sparse.experts},
                       at::TensorOptions().dtype(at::kLong));
  }

  // Begins to sum the loads of each rank's stages in a step; never waits. One sum runs at a time.
  void start(const std::map<int, at::Tensor>& own) {
    loads_.zero_();
    std::vector<at::Tensor> rows;
    for (const auto& [layer, load] : own) rows.push_back(load);
    const at::Tensor on_host = rows.empty() ? loads_ : at::stack(rows).cpu();  // one wait for the device
    int64_t i = 0;
    for (const auto& [layer, load] : own) {
      const auto row = std::ranges::find(layers_, layer) - layers_.begin();
      loads_[row].copy_(on_host[i++]);
    }
    work_ = group_->iall_reduce_sum(loads_);
  }

  // By layer, the same on every rank. Collective.
  metrics::ExpertLoads wait() {
    std::exchange(work_, nullptr)->wait([] { return "the loads of the experts"; });
    metrics::ExpertLoads result;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const at::Tensor row = loads_[static_cast<int64_t>(i)];
      const auto* const values = row.const_data_ptr<int64_t>();
      result[layers_[i]] = {values, values + row.numel()};
    }
    return result;
  }

 private:
  std::unique_ptr<comm::Communicator> group_;  // its own, so that its sums meet no others
  std::vector<int> layers_;                    // the sparse ones
  at::Tensor loads_;                           // int64 [layers, experts]
  std::unique_ptr<comm::Work> work_;
};

StepRunner::StepRunner(RunContext& context, RankModel& model, data::DataLoader& loader,
                       MakeLoader make_loader, checkpoint::RunState& state,
                       const std::vector<StepListener*>& listeners)
    : context_(context),
      model_(model),
      loader_(loader),
      make_loader_(std::move(make_loader)),
      state_(state),
      listeners_(listeners),
      microbatches_(context.job.train.grad_accum_steps),
      executor_(make_executor(context.plan)),
      profile_(context, *executor_, context.plan.schedule),
      anomaly_(context.job.train.max_skipped_steps) {
  if (context.plan.recompute_memory > 0)
    recompute_ = step_recompute(context.plan, context.mesh.coordinate(mesh::Axis::pp));
  if (context.job.optimizer.post_validation) {
    executor_->prepare_validation(context.plan.schedule);
    post_validation_.emplace(context, model);
  }
  if (context.model.sparse.experts > 0)
    expert_loads_ = std::make_unique<LoadSum>(context.mesh.world(), context.model);
}

StepRunner::~StepRunner() = default;

std::unique_ptr<pipeline::Executor> StepRunner::make_executor(const Plan& plan) {
  auto executor = std::make_unique<pipeline::Executor>(
      model_.pipeline_stages(), context_.mesh.along(mesh::Axis::pp), plan.schedule, model_.head_links());
  executor->report_to(context_.activity, context_.device);
  return executor;
}

void StepRunner::follow_batch_size() {
  const int64_t count = context_.job.train.microbatches_of(state_.step + 1);
  if (count == std::exchange(microbatches_, count)) return;
  later_ = with_microbatches(context_.plan, count);
  executor_ = make_executor(*later_);
  profile_.follow(*executor_, later_->schedule);
  if (recompute_) recompute_ = step_recompute(*later_, context_.mesh.coordinate(mesh::Axis::pp));
  loader_ = make_loader_(count);
  if (context_.root()) spdlog::info("step {} has {} microbatches", state_.step + 1, count);
}

void StepRunner::run(const std::function<bool()>& is_asked) {
  follow_batch_size();
  if (logs(Subsystem::memory, spdlog::level::debug)) log_memory(state_.step + 1, context_.device);
  profile_.begin_step(state_.step + 1);
  const auto begin = Clock::now();
  state_.validation_loss.reset();  // it belongs to the step before
  StepResult step = run_pipeline();
  if (expert_loads_) expert_loads_->start(model_.take_expert_loads());
  profile_.timed(Phase::embedding_gradients, [&] { model_.exchange_embedding_gradients(); });
  step.step = ++state_.step;
  const config::JobConfig& job = context_.job;
  step.lr = optim::learning_rate(job.optimizer.lr, job.lr_schedule, job.train.steps, step.step - 1);
  const double unclipped = 1.0 / divisor(step);
  if (post_validation_ && post_validation_->confident() && !result_needed()) {
    profile_.timed(Phase::optimizer, [&] { post_validation_->start(step.lr, unclipped, is_asked()); });
    profile_.end_step();
    pending_ = step;
    pending_.seconds = seconds_since(begin);
    return;
  }
  const double loss = profile_.timed(Phase::loss, [&] { return model_.global_loss(); });
  const auto squares = profile_.timed(Phase::gradient_norm, [&] { return model_.squared_norm(); });
  judge(step, loss, profile_.timed(Phase::norm_exchange, [&] { return model_.norm()(squares); }));
  for (StepListener* listener : listeners_) listener->begin_update(step.step);
  if (step.applied) profile_.timed(Phase::optimizer, [&] { model_.apply(step.lr, step.grad_scale); });
  if (post_validation_) post_validation_->set_confident(step.applied && step.grad_scale == unclipped);
  profile_.end_step();
  step.seconds = seconds_since(begin);
  settle(std::move(step));
}

void StepRunner::answered() {
  if (post_validation_) post_validation_->answered();
}

bool StepRunner::result_needed() const {
  return state_.step == context_.job.train.steps || post_validation_->is_urgent() ||
         std::ranges::any_of(listeners_, [&](const StepListener* l) { return l->is_due(state_.step); });
}

StepResult StepRunner::run_pipeline() {
  const auto begin = Clock::now();
  const data::Step step = profile_.timed(Phase::data, [&] { return loader_.step(state_.next_sample); });
  const double data_wait = seconds_since(begin);
  if (recompute_) model_.recompute_by_microbatch(recompute_(tokens_of(step.microbatches)));
  if (pending()) {
    executor_->run(step.microbatches, [this] { return validate(); });
  } else {
    zero_gradients();
    executor_->run(step.microbatches);
  }
  state_.next_sample += step.samples;
  StepResult result = {
      .valid_tokens = step.targets, .tokens = step.tokens, .padding = step.padding, .data_wait_s = data_wait};
  if (context_.job.metrics.microbatch_losses) {
    // A microbatch may have come in slices, the first of which counts its targets.
    const size_t parts = step.microbatches.size() / static_cast<size_t>(microbatches_);
    result.microbatch_losses = model_.microbatch_losses(microbatches_, static_cast<int64_t>(parts));
    for (size_t i = 0; i < result.microbatch_losses.size(); ++i)
      result.microbatch_losses[i] /=
          static_cast<double>(std::max<int64_t>(step.microbatches[i * parts].global_targets, 1));
  }
  return result;
}

bool StepRunner::validate() {
  profile_.timed(Phase::norm_exchange, [&] { post_validation_->wait(pending_.step); });
  const double loss = post_validation_->loss(), norm = post_validation_->norm();
  bool stands = false;
  const auto correct = [&](const std::optional<double>& scale) {
    stands = profile_.timed(Phase::optimizer, [&] { return post_validation_->correct(scale); });
  };
  // A step that is not finite is taken back first, so that weights are checked as they were before it.
  const bool finite = std::isfinite(loss) && std::isfinite(norm);
  if (!finite) correct(std::nullopt);
  judge(pending_, loss, norm);
  if (finite) correct(pending_.applied ? std::optional(pending_.grad_scale) : std::nullopt);
  settle(pending_);
  zero_gradients();
  return stands;
}

void StepRunner::zero_gradients() {
  profile_.timed(Phase::zero_gradients, [&] { model_.zero_grad(); });
}

void StepRunner::judge(StepResult& step, double loss, double norm) {
  const double tokens = divisor(step);
  step.loss = loss / tokens;
  step.norm = norm / tokens;
  // Every rank holds the same bits of loss and norm, so all take the same branch.
  const std::string where = find_not_finite(step.loss, step.norm);
  if (step.valid_tokens == 0 && where.empty()) return anomaly_.skip_empty();
  step.applied = anomaly_.accept(step.loss, step.norm, where);
  if (step.applied) step.grad_scale = clip_coefficient(step.norm, context_.job.train.grad_clip) / tokens;
}

std::string StepRunner::find_not_finite(double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return "";
  const std::string where = describe_not_finite(context_.mesh.world(), model_.stages());
  if (!context_.root() || anomaly_.in_a_row() > 0) return where;
  const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing the log");
  spdlog::warn("not finite: loss {:.6g}, gradient norm {:.6g}; {}", metrics::unsigned_nan(loss),
               metrics::unsigned_nan(norm), where);
  return where;
}

void StepRunner::settle(StepResult step) {
  state_.optimizer_step = model_.optimizer_step();
  state_.tokens += step.valid_tokens;
  state_.skipped = anomaly_.total();
  state_.skipped_in_a_row = anomaly_.in_a_row();
  step.bubble = profile_.settle();
  if (expert_loads_) step.expert_loads = expert_loads_->wait();
  for (StepListener* listener : listeners_) listener->settled(step);
}

}  // namespace pptrain::app

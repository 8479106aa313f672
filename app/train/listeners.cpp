#include "app/train/listeners.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/seconds_since.h"
#include "core/metrics/memory.h"
#include "models/flops.h"

namespace pptrain::app {

RunMetrics::RunMetrics(RunContext& context, const checkpoint::RunState& state)
    : context_(context),
      state_(state),
      port_(listen_for_metrics(context)),
      flops_per_token_(models::flops_per_token(context.model, context.job.train.seq_len)) {}

void RunMetrics::open(const metrics::RunHeader& header, const std::vector<OpenSource>& sources,
                      const data::DataLoader& loader, const RunSaver& saver,
                      std::optional<int64_t> resumed_at) {
  sources_ = &sources;
  loader_ = &loader;
  saver_ = &saver;
  resumed_at_ = resumed_at;
  sinks_ = open_sinks(context_, header, so_far(), std::move(port_));
  peak_rate_ = metrics::PeakRate(peak_flops_of_all(context_));
}

void RunMetrics::close() {
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing metrics");
  for (const auto& sink : sinks_) sink->end();
  sinks_.clear();
}

metrics::StepRecord RunMetrics::so_far() const {
  const int64_t saved = saver_->saved_step();
  return {.step = state_.step,
          .skipped_steps = state_.skipped,
          .total_tokens = state_.tokens,
          .saved_step = saved >= 0 ? std::optional(saved) : resumed_at_};
}

void RunMetrics::settled(const StepResult& result) {
  if (!context_.root()) return;
  const comm::ActivityScope writing(context_.report.activity, comm::Doing::storage, "writing metrics");
  const metrics::StepRecord written = record(result);
  for (const auto& sink : sinks_) sink->step(written);
}

metrics::StepRecord RunMetrics::record(const StepResult& result) {
  const auto tokens = static_cast<double>(result.valid_tokens);
  const double stalled = saver_->stalled_seconds();
  metrics::StepRecord record = so_far();
  record.step = result.step;
  record.loss = tokens > 0 ? result.loss : std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = result.norm;
  record.lr = result.lr;
  record.tokens = result.valid_tokens;
  record.computed_tokens = result.tokens;
  record.padding_tokens = result.padding;
  record.tokens_per_s = tokens / result.seconds;
  record.step_time_s = result.seconds;
  record.mfu = peak_rate_.utilization(flops_per_token_ * tokens / result.seconds);
  record.memory_gb = static_cast<double>(metrics::peak_memory_bytes(context_.device)) / 1e9;
  record.skipped = !result.applied;
  record.epoch = static_cast<double>(state_.next_sample) / static_cast<double>(loader_->samples_per_epoch());
  record.data_wait_s = result.data_wait_s;
  record.save_time_s = stalled - std::exchange(stalled_, stalled);
  record.time = std::chrono::system_clock::now();
  record.bubble = result.bubble;
  record.expert_loads = result.expert_loads;
  if (sources_->size() == 1) return record;
  const std::vector<double> epochs = loader_->epochs(state_.next_sample);
  for (size_t i = 0; i < epochs.size(); ++i)
    record.source_epochs.emplace_back((*sources_)[i].name, epochs[i]);
  return record;
}

void RunMetrics::evaluated(const metrics::EvalRecord& record) {
  for (const auto& sink : sinks_) sink->eval(record);
}

namespace {

void warn_of_no_targets(const std::vector<metrics::SourceLoss>& sources, int64_t step) {
  for (const metrics::SourceLoss& source : sources) {
    if (source.tokens == 0)
      spdlog::warn(
          "step {}: the validation data{} have no token to predict: all are prompts, first tokens of "
          "documents or padding. There is no loss of them",
          step, source.name.empty() ? "" : fmt::format(" of {}", source.name));
  }
}

}  // namespace

Evaluation::Evaluation(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources,
                       StepProfile& profile, RunMetrics& metrics, checkpoint::RunState& state)
    : context_(context),
      evaluator_(context, model, sources),
      profile_(profile),
      metrics_(metrics),
      state_(state) {}

bool Evaluation::is_due(int64_t step) const {
  return step % context_.job.eval.interval == 0 || step == context_.job.train.steps;
}

void Evaluation::after_step() {
  profile_.timed(Phase::evaluation, [this] { evaluate(); });
}

void Evaluation::evaluate() {
  const metrics::PhaseNote note = metrics_.note("evaluating");
  const auto begin = std::chrono::steady_clock::now();
  Evaluator::Result result = evaluator_.run();
  const double loss = result.all.loss();
  if (context_.root()) warn_of_no_targets(result.sources, state_.step);
  if (result.all.tokens == 0) return;                      // no loss, and none that could be the best
  if (result.sources.size() == 1) result.sources.clear();  // it is all
  std::erase_if(result.sources, [](const metrics::SourceLoss& source) { return source.tokens == 0; });
  metrics_.evaluated({.step = state_.step,
                      .loss = loss,
                      .tokens = result.all.tokens,
                      .time_s = seconds_since(begin),
                      .sources = std::move(result.sources),
                      .time = std::chrono::system_clock::now()});
  if (std::isfinite(loss)) state_.validation_loss = loss;
}

Samples::Samples(RunContext& context, RankModel& model, StepProfile& profile,
                 const checkpoint::RunState& state)
    : interval_(context.job.eval.generate_interval), log_(context, model), profile_(profile), state_(state) {}

void Samples::after_step() {
  profile_.timed(Phase::evaluation, [this] { log_.log(state_.step); });
}

Requests::Requests(const RunContext& context, const LockHolder& self)
    : context_(context), requests_(context.job.run.dir, self) {}

StopOrSave Requests::wants() {
  const comm::ActivityScope looking(context_.report.activity, comm::Doing::storage, "a look for requests");
  requests_.look();
  asked_ = requests_.wants_any();
  return {.stop = requests_.wants(RequestKind::stop), .save = asked_};
}

void Requests::agreed(int64_t step) {
  if (std::exchange(asked_, false)) requests_.agreed(step);
}

void Requests::saved(int64_t step, const std::filesystem::path& folder, const std::string& failure) {
  requests_.saved(step, folder.filename().string(), failure);
}

}  // namespace pptrain::app

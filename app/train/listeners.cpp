#include "app/train/listeners.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/data/text_codec.h"
#include "app/generate/generator.h"
#include "app/rank/evaluator.h"
#include "app/run/pace.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/kernels/device_name.h"
#include "core/metrics/log_sinks.h"
#include "core/metrics/memory.h"
#include "core/metrics/metrics_file.h"
#include "core/metrics/peak_flops.h"
#include "core/metrics/prometheus.h"
#include "core/metrics/tensorboard.h"
#include "core/metrics/terminal_sinks.h"
#include "models/flops.h"
#include "parallel/comm/agreement.h"

namespace pptrain::app {

namespace {

// Whether its folder takes a new file; the file itself stays as it is until the run begins.
void check_prometheus_file(RunContext& context) {
  const std::string& file = context.job.metrics.prometheus_file;
  if (file.empty()) return;
  std::string fault;
  try {
    if (context.root()) const io::NewFile attempt(file);
  } catch (const Error& error) {
    fault = error.what();
  }
  fault = comm::broadcast_string(context.mesh.world(), fault, 0);
  if (!fault.empty()) throw CommonFault("metrics.prometheus_file: " + fault);
}

// `so_far`: the run's state before this start (step, tokens, skipped steps, newest checkpoint).
std::vector<std::unique_ptr<metrics::Sink>> open_sinks(const config::JobConfig& job,
                                                       const metrics::RunHeader& header,
                                                       const metrics::StepRecord& so_far) {
  const std::filesystem::path folder = job.run.dir;
  std::vector<std::unique_ptr<metrics::Sink>> sinks;
  sinks.push_back(metrics::make_jsonl_sink(folder / "metrics.jsonl", header));
  if (job.metrics.tensorboard)
    sinks.push_back(metrics::make_tensorboard_sink(folder / "tensorboard", header));
  if (const std::string& file = job.metrics.prometheus_file; !file.empty())
    sinks.push_back(metrics::make_prometheus_sink(file, job.run.dir, job.train.steps, header, so_far));
  sinks.push_back(metrics::make_line_sink(job.metrics.log_interval, job.train.steps));
  if (auto console = metrics::sink_of_log<metrics::Console>(); console && metrics::terminal_columns()) {
    sinks.push_back(metrics::make_loss_curve_sink());
    sinks.push_back(metrics::make_bar_sink(std::move(console), header.step, job.train.steps));
  }
  return sinks;
}

// FLOP/s of all ranks' devices, of which mfu is a fraction; 0 if unknown. Ranks that share cores have
// together no more than these.
double peak_flops_of_all(const RunContext& context, const CoreSharing& sharing) {
  const config::JobConfig& job = context.job;
  const int world = context.mesh.shape().world_size();
  if (job.metrics.peak_tflops > 0) return job.metrics.peak_tflops * 1e12 * world;
  return metrics::peak_flops(context.device, job.train.dtype == config::Dtype::bf16) * world /
         sharing.load(world, job.run.threads);
}

}  // namespace

// Times a CPU's peak twice, some moments apart: other work on the host may disturb one of them.
RunMetrics::RunMetrics(RunContext& context, const checkpoint::RunState& state, const CoreSharing& sharing)
    : context_(context),
      state_(state),
      sharing_(sharing),
      flops_per_token_(models::flops_per_token(context.model, context.job.train.seq_len)) {
  check_prometheus_file(context);
  if (context.root()) peak_flops_ = peak_flops_of_all(context, sharing);
}

void RunMetrics::open(const metrics::RunHeader& header, const std::vector<OpenSource>& sources,
                      const data::DataLoader& loader, const RunSaver& saver, std::optional<int64_t> saved) {
  sources_ = &sources;
  loader_ = &loader;
  saver_ = &saver;
  saved_before_ = saved;
  sinks_ = open_sinks(context_.job, header, so_far());
  peak_flops_ = std::max(peak_flops_, peak_flops_of_all(context_, sharing_));
  if (peak_flops_ == 0) {
    spdlog::warn("mfu is not known: there is no peak rate for {} here. Give metrics.peak_tflops",
                 kernels::device_name(context_.device));
  }
}

void RunMetrics::close() {
  const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing metrics");
  for (const auto& sink : sinks_) sink->end();
  sinks_.clear();
}

metrics::StepRecord RunMetrics::so_far() const {
  const int64_t saved = saver_->saved_step();
  return {.step = state_.step,
          .skipped_steps = state_.skipped,
          .total_tokens = state_.tokens,
          .saved_step = saved >= 0 ? std::optional(saved) : saved_before_};
}

void RunMetrics::settled(const StepResult& result) {
  if (!context_.root()) return;
  const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing metrics");
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
  record.mfu = metrics::utilization(flops_per_token_ * tokens / result.seconds, peak_flops_);
  record.memory_gb = static_cast<double>(metrics::peak_memory_bytes(context_.device)) / 1e9;
  record.skipped = !result.applied;
  record.epoch = static_cast<double>(state_.next_sample) / static_cast<double>(loader_->samples_per_epoch());
  record.data_wait_s = result.data_wait_s;
  record.save_time_s = stalled - std::exchange(stalled_, stalled);
  record.time = std::chrono::system_clock::now();
  record.bubble = result.bubble;
  record.expert_loads = result.expert_loads;
  record.microbatch_losses = result.microbatch_losses;
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

class PaceWatch final : public StepListener {
 public:
  PaceWatch(const RunContext& context, const StepProfile& profile, const CoreSharing& sharing)
      : context_(context), profile_(profile), sharing_(sharing) {}

  void settled(const StepResult& result) override {
    // If microbatches have different numbers of tokens, steps cannot be compared.
    const config::JobConfig& job = context_.job;
    if (!context_.root() || job.data.lengths != config::Lengths::fixed ||
        !job.train.grad_accum_schedule.empty())
      return;
    if (!pace_) pace_.emplace(context_.plan, sharing_);
    const std::string line = pace_->take(result.step, {result.seconds, profile_.shares()});
    if (line.empty()) return;
    const comm::ActivityScope writing(context_.activity, comm::ActivityKind::storage, "writing the pace");
    spdlog::info("{}", line);
    try {
      write_pace(context_.job.run.dir, pace_->record());
    } catch (const Error& error) {  // such as a full disk, which must not end training
      spdlog::warn("the pace is not written: {}", error.what());
    }
  }

 private:
  const RunContext& context_;
  const StepProfile& profile_;
  CoreSharing sharing_;
  std::optional<Pace> pace_;
};

void warn_of_no_targets(const std::vector<metrics::SourceLoss>& sources, int64_t step) {
  for (const metrics::SourceLoss& source : sources) {
    if (source.tokens == 0)
      spdlog::warn(
          "step {}: the validation data{} have no token to predict: all are prompts, first tokens of "
          "documents or padding. There is no loss of them",
          step, source.name.empty() ? "" : fmt::format(" of {}", source.name));
  }
}

class Evaluation final : public StepListener {
 public:
  Evaluation(RunContext& context, RankModel& model, const std::vector<OpenSource>& sources,
             StepProfile& profile, RunMetrics& metrics, checkpoint::RunState& state)
      : context_(context),
        evaluator_(context, model, sources),
        profile_(profile),
        metrics_(metrics),
        state_(state) {}

  bool is_due(int64_t step) const override {
    const int64_t interval = context_.job.eval.interval;
    return (interval > 0 && step % interval == 0) || step == context_.job.train.steps;
  }
  void after_step() override {
    profile_.timed(Phase::evaluation, [this] { evaluate(); });
  }

 private:
  void evaluate() {
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
                        .bits_per_byte = result.all.bits_per_byte(),
                        .sources = std::move(result.sources),
                        .time = std::chrono::system_clock::now()});
    if (std::isfinite(loss)) state_.validation_loss = loss;
  }

  RunContext& context_;
  Evaluator evaluator_;
  StepProfile& profile_;
  RunMetrics& metrics_;
  checkpoint::RunState& state_;
};

// The text on one line, with \n for a line break.
std::string quoted(const std::string& text) {
  return one_line(nlohmann::json(text));
}

StopRules stop_rules(const config::JobConfig& job, const TextCodec& codec) {
  StopRules rules{.max_tokens = job.eval.generate_tokens, .ids = codec.stop_ids(), .texts = {}};
  if (job.data.document_end >= 0) rules.ids.push_back(job.data.document_end);
  return rules;
}

class Samples final : public StepListener {
 public:
  Samples(RunContext& context, RankModel& model, StepProfile& profile, const checkpoint::RunState& state)
      : context_(context),
        codec_(make_text_codec(context.job)),
        stop_(stop_rules(context.job, *codec_)),
        generator_(context, model,
                   {.sampling = {.seed = static_cast<uint64_t>(context.job.run.seed)}, .stop = stop_}),
        profile_(profile),
        state_(state) {}

  bool is_due(int64_t step) const override { return step % context_.job.eval.generate_interval == 0; }
  void after_step() override {
    profile_.timed(Phase::evaluation, [this] { log(); });
  }

 private:
  void log() {
    const std::string& prompt = context_.job.eval.generate_prompt;
    std::vector<Sequence> sequences;
    sequences.emplace_back(codec_->encode(prompt), 0, stop_, codec_.get());
    generator_.run(sequences);
    if (context_.root())
      spdlog::info("step {}  sample {} -> {}", state_.step, quoted(prompt), quoted(sequences.front().text()));
  }

  RunContext& context_;
  std::shared_ptr<const TextCodec> codec_;
  StopRules stop_;
  Generator generator_;
  StepProfile& profile_;
  const checkpoint::RunState& state_;
};

}  // namespace

std::unique_ptr<StepListener> make_pace_watch(const RunContext& context, const StepProfile& profile,
                                              const CoreSharing& sharing) {
  return std::make_unique<PaceWatch>(context, profile, sharing);
}

std::unique_ptr<StepListener> make_evaluation(RunContext& context, RankModel& model,
                                              const std::vector<OpenSource>& sources, StepProfile& profile,
                                              RunMetrics& metrics, checkpoint::RunState& state) {
  return std::make_unique<Evaluation>(context, model, sources, profile, metrics, state);
}

std::unique_ptr<StepListener> make_samples(RunContext& context, RankModel& model, StepProfile& profile,
                                           const checkpoint::RunState& state) {
  return std::make_unique<Samples>(context, model, profile, state);
}

Divergence::Divergence(const config::TrainSection& train, checkpoint::RunState& state)
    : watch_(train.divergence_steps, train.divergence_window, train.divergence_band),
      train_(train),
      state_(state) {}

void Divergence::restore() {
  watch_.restore(state_.recent_losses, state_.losses_above, state_.above_since);
}

void Divergence::settled(const StepResult& result) {
  if (result.applied) watch_.take(result.step, result.loss);
  state_.recent_losses = watch_.recent();
  state_.losses_above = watch_.above();
  state_.above_since = watch_.since();
}

bool Divergence::is_due(int64_t) const {
  return watch_.may_diverge_next();
}

std::string Divergence::what_is_left(const DivergedCheckpoints& left) const {
  if (left.saved.empty()) return left.failure;
  return fmt::format("The state of step {} is in checkpoints/{}, to be looked at", state_.step, left.saved);
}

std::string Divergence::rollback_report(const DivergedCheckpoints& left, int64_t number) const {
  return fmt::format(
      "diverged at step {}: {}. {}. Rollback {} of {}: the run goes back to its newest state from before "
      "step "
      "{}, and skips what it read since: its next sample is {}.",
      state_.step, watch_.describe(), what_is_left(left), number, train_.max_rollbacks, state_.above_since,
      state_.next_sample);
}

std::string Divergence::report(const DivergedCheckpoints& left) const {
  const std::string sound =
      left.sound.empty()
          ? "No checkpoint is from before that, so the same command begins anew"
          : fmt::format("The newest checkpoint from before that is {}, from which the same command goes on",
                        left.sound.string());
  return fmt::format(
      "diverged at step {}: {}. {}; no start goes on from there by itself. {}, and meets the same again if "
      "nothing is changed: lower optimizer.lr or train.grad_clip, or take other data from there on (another "
      "run.seed with checkpoint.data = \"continue\"). If the loss was right, widen train.divergence_band or "
      "train.divergence_steps.",
      state_.step, watch_.describe(), what_is_left(left), sound);
}

}  // namespace pptrain::app

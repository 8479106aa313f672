#include "app/run/run_log.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/logger.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ranges>

#include "app/run/start_choice.h"
#include "core/config/validate.h"
#include "core/metrics/log_sinks.h"
#include "core/metrics/progress_text.h"
#include "models/flops.h"
#include "models/hf_directory.h"

namespace pptrain::app {

void start_log(metrics::Color color, const comm::Launch& launch) {
  const auto console = std::make_shared<metrics::Console>(metrics::wants_color(color));
  const bool first = launch.rank == 0;
  const auto file =
      std::make_shared<metrics::LogFile>(first ? "log.txt" : fmt::format("log.rank_{}.txt", launch.rank));
  if (!first) {
    console->set_pattern(fmt::format("%T rank {}: %^%v%$", launch.rank));
    console->set_level(spdlog::level::warn);
    file->set_level(spdlog::level::warn);
  }
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("pptrain", spdlog::sinks_init_list{console, file}));
}

void open_log(const std::filesystem::path& run_dir) {
  if (const auto file = metrics::sink_of_log<metrics::LogFile>()) file->open(run_dir);
}

void log_failure(const std::string& message) {
  const auto file = metrics::sink_of_log<metrics::LogFile>();
  if (!file) return;
  try {
    file->log(spdlog::details::log_msg("pptrain", spdlog::level::err, message));
  } catch (const spdlog::spdlog_ex&) {
    // main reports the failure itself.
  }
}

checkpoint::Layout describe_layout(const Plan& plan, const std::string& data) {
  checkpoint::Layout layout{
      {"pp_schedule", plan.job.distributed.pp_schedule},
      {"layers_per_stage", fmt::format("{}", fmt::join(pipeline::layers_per_stage(plan.layers), ","))},
      {"seq_len", fmt::to_string(plan.job.train.seq_len)},
      {"data", data},
      {machine_name, machine(plan.job.run.device)}};
  for (const auto& [axis, size] : plan.mesh.sizes()) layout.emplace(axis, fmt::to_string(size));
  return layout;
}

namespace {

// Of a data rank in the whole run.
double microbatches(const config::TrainSection& train) {
  double count = 0;
  int64_t end = train.steps + 1;
  for (const config::BatchStep& later : train.grad_accum_schedule | std::views::reverse) {
    const int64_t begin = std::min(end, later.from_step);
    count += static_cast<double>(end - begin) * static_cast<double>(later.grad_accum_steps);
    end = begin;
  }
  return count + static_cast<double>(end - 1) * static_cast<double>(train.grad_accum_steps);
}

// How often train.steps read each source; an upper bound if rows of documents are not filled.
void announce_data(const RunContext& context, const std::vector<OpenSource>& sources) {
  const config::JobConfig& job = context.job;
  // As real numbers, since all factors may be large.
  const double tokens = microbatches(job.train) *
                        static_cast<double>(job.train.micro_batch_size * job.train.seq_len) *
                        static_cast<double>(context.mesh.size(mesh::Group::batch));
  const char* const bound = job.data.lengths == config::Lengths::fixed ? "" : "at most ";
  double weights = 0;
  for (const OpenSource& source : sources) weights += source.weight;
  spdlog::info("{} steps take {}{} tokens", metrics::with_commas(job.train.steps), bound,
               tokens < 1e18 ? metrics::with_commas(std::llround(tokens)) : fmt::format("{:.3g}", tokens));
  for (const OpenSource& source : sources) {
    const double epochs = tokens * source.weight / weights / static_cast<double>(source.train->size());
    const std::string name =
        sources.size() > 1 ? fmt::format("source {}: weight {:g},", source.name, source.weight) : "data:";
    spdlog::info("{} {} tokens, {}{:.2f} epochs", name, metrics::with_commas(source.train->size()), bound,
                 epochs);
  }
}

}  // namespace

void announce(const RunContext& context, const std::vector<OpenSource>& sources) {
  const config::JobConfig& job = context.job;
  const int ranks = context.mesh.shape().world_size();
  spdlog::info("pptrain: {} of {}, {} {} rank{} ({}), {}{}", job.model.arch,
               models::parameters_text(context.model), ranks, context.device.is_cpu() ? "CPU" : "GPU",
               ranks == 1 ? "" : "s", context.mesh.shape().describe(), job.train.dtype.text,
               context.model.fp8 ? " and FP8" : "");
  const int data_ranks = context.mesh.size(mesh::Group::batch);
  spdlog::info("schedule {}, layers per stage {}, {} microbatches of {}{} x {} tokens a step{}{}",
               job.distributed.pp_schedule, fmt::join(pipeline::layers_per_stage(context.plan.layers), "+"),
               job.train.grad_accum_steps, job.data.lengths == config::Lengths::fixed ? "" : "at most ",
               job.train.micro_batch_size, job.train.seq_len, context.plan.schedule.slices_text(),
               data_ranks > 1 ? fmt::format(" on each of {} data ranks", data_ranks) : "");
  for (const config::BatchStep& later : job.train.grad_accum_schedule)
    spdlog::info("{} microbatches from step {} on", later.grad_accum_steps, later.from_step);
  announce_data(context, sources);
  spdlog::info("output in {}", job.run.dir);
  for (const std::string& note : context.plan.notes) spdlog::info("{}", note);
  for (const auto& warnings : {config::warnings(job), models::export_warnings(context.model)}) {
    for (const std::string& warning : warnings) spdlog::warn("warning: {}", warning);
  }
}

}  // namespace pptrain::app

#include "app/run/run_log.h"

#include <c10/core/DeviceType.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/logger.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "core/config/validate.h"
#include "core/kernels/device_name.h"
#include "core/metrics/log_sinks.h"
#include "core/metrics/metrics_file.h"
#include "core/metrics/peak_flops.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/prometheus.h"
#include "core/metrics/tensorboard.h"
#include "core/metrics/terminal_sinks.h"
#include "core/net/address.h"
#include "models/flops.h"
#include "parallel/comm/agreement.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

void start_log(metrics::Color color, const comm::Launch& launch) {
  const auto console = std::make_shared<metrics::Console>(metrics::wants_color(color));
  const bool first = launch.rank == 0;
  const auto file =
      std::make_shared<metrics::LogFile>(first ? "log.txt" : fmt::format("log.rank_{}.txt", launch.rank));
  if (!first) {
    console->set_pattern(fmt::format("%T rank {}: %^%v%$", launch.rank));
    for (spdlog::sinks::sink* sink : std::initializer_list<spdlog::sinks::sink*>{console.get(), file.get()})
      sink->set_level(spdlog::level::warn);
  }
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("pptrain", spdlog::sinks_init_list{console, file}));
}

void open_log(const std::filesystem::path& run_dir) {
  if (const auto file = metrics::file_of_log()) file->open(run_dir);
}

void log_failure(const std::string& message) {
  const auto file = metrics::file_of_log();
  if (!file) return;
  try {
    file->log(spdlog::details::log_msg("pptrain", spdlog::level::err, message));
  } catch (const spdlog::spdlog_ex&) {
    // The failure itself is what main reports.
  }
}

namespace fs = std::filesystem;

std::optional<metrics::Listener> listen_for_metrics(RunContext& context) {
  const std::string& address = context.job.metrics.prometheus;
  if (address.empty()) return std::nullopt;
  std::optional<metrics::Listener> listener;
  std::string fault;
  if (context.root())
    fault =
        comm::fault_of([&] { listener = metrics::listen_on(net::parse_listen_address(address).value()); });
  fault = comm::broadcast_string(context.mesh.world(), fault, 0);
  if (!fault.empty()) throw CommonFault(fault);
  return listener;
}

std::vector<std::unique_ptr<metrics::Sink>> open_sinks(const RunContext& context,
                                                       const metrics::RunHeader& header,
                                                       const metrics::StepRecord& so_far,
                                                       std::optional<metrics::Listener> listener) {
  const config::JobConfig& job = context.job;
  const fs::path folder = job.run.dir;
  std::vector<std::unique_ptr<metrics::Sink>> sinks;
  sinks.push_back(std::make_unique<metrics::JsonlSink>(folder / "metrics.jsonl", header));
  if (job.metrics.tensorboard)
    sinks.push_back(std::make_unique<metrics::TensorboardSink>(folder / "tensorboard", header));
  if (listener) {
    spdlog::info("figures for Prometheus at {}", listener->url);
    const metrics::RunFigures run{
        .dir = job.run.dir, .last_step = job.train.steps, .header = header, .so_far = so_far};
    sinks.push_back(std::make_unique<metrics::PrometheusSink>(std::move(*listener), run));
  }
  sinks.push_back(std::make_unique<metrics::LineSink>(job.metrics.log_interval, job.train.steps));
  if (auto console = metrics::console_of_log(); console && metrics::terminal_columns()) {
    sinks.push_back(std::make_unique<metrics::LossCurveSink>());
    sinks.push_back(std::make_unique<metrics::BarSink>(std::move(console), header.step, job.train.steps));
  }
  return sinks;
}

double peak_flops_of_all(const RunContext& context) {
  const config::JobConfig& job = context.job;
  const double each = job.metrics.peak_tflops > 0
                          ? job.metrics.peak_tflops * 1e12
                          : metrics::peak_flops(context.device, job.train.dtype == config::Dtype::bf16);
  if (each == 0) {
    spdlog::warn("mfu is not known: there is no peak rate for {} here. Give metrics.peak_tflops",
                 kernels::device_name(context.device));
  }
  return each * context.mesh.shape().world_size();
}

checkpoint::Layout describe_layout(const Plan& plan, const std::string& data) {
  return {{"pp", fmt::to_string(plan.mesh.pp)},
          {"dp_replicate", fmt::to_string(plan.mesh.dp_replicate)},
          {"dp_shard", fmt::to_string(plan.mesh.dp_shard)},
          {"cp", fmt::to_string(plan.mesh.cp)},
          {"tp", fmt::to_string(plan.mesh.tp)},
          {"ep", fmt::to_string(plan.mesh.ep)},
          {"pp_schedule", plan.job.distributed.pp_schedule},
          {"layers_per_stage", fmt::format("{}", fmt::join(pipeline::layers_per_stage(plan.layers), ","))},
          {"seq_len", fmt::to_string(plan.job.train.seq_len)},
          {"data", data}};
}

void announce(const RunContext& context, const std::vector<OpenSource>& sources) {
  const config::JobConfig& job = context.job;
  spdlog::info("pptrain: {} of {:.2f} M parameters, {} on {} x {} rank{}, {}", job.model.arch,
               static_cast<double>(models::parameter_count(context.model)) / 1e6,
               context.mesh.shape().describe(), context.mesh.shape().world_size(),
               c10::DeviceTypeName(context.device.type(), /*lower_case=*/true),
               context.mesh.shape().world_size() == 1 ? "" : "s", job.train.dtype.text);
  const int data_ranks = context.mesh.size(mesh::Group::batch);
  spdlog::info("schedule {}, layers per stage {}, {} microbatches of {}{} x {} tokens a step{}",
               job.distributed.pp_schedule, fmt::join(pipeline::layers_per_stage(context.plan.layers), "+"),
               job.train.grad_accum_steps, job.data.lengths == config::Lengths::fixed ? "" : "at most ",
               job.train.micro_batch_size, job.train.seq_len,
               data_ranks > 1 ? fmt::format(" on each of {} data ranks", data_ranks) : "");
  for (const OpenSource& source : sources) {
    if (sources.size() > 1)
      spdlog::info("source {}: weight {:g}, {} tokens", source.name, source.weight,
                   metrics::with_commas(source.train->size()));
  }
  spdlog::info("output in {}", job.run.dir);
  for (const std::string& warning : config::warnings(job)) spdlog::warn("warning: {}", warning);
}

}  // namespace pptrain::app

#include "app/run/sinks.h"

#include <spdlog/spdlog.h>

#include <filesystem>
#include <string>
#include <utility>

#include "core/base/listen_address.h"
#include "core/kernels/device_name.h"
#include "core/metrics/jsonl_sink.h"
#include "core/metrics/loss_curve.h"
#include "core/metrics/peak_flops.h"
#include "core/metrics/prometheus/prometheus_sink.h"
#include "core/metrics/tensorboard/tensorboard_sink.h"
#include "core/metrics/terminal_sinks.h"
#include "parallel/comm/agreement.h"

namespace pptrain::app {

namespace fs = std::filesystem;

std::optional<metrics::Listener> listen_for_metrics(RunContext& context) {
  const std::string& address = context.job.metrics.prometheus;
  if (address.empty()) return std::nullopt;
  std::optional<metrics::Listener> listener;
  std::string fault;
  if (context.root())
    fault = comm::fault_of([&] { listener = metrics::listen_on(parse_listen_address(address).value()); });
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
                          : metrics::peak_flops(context.device, job.train.dtype == "bf16");
  if (each == 0) {
    spdlog::warn("mfu is not known: there is no peak rate for {} here. Give metrics.peak_tflops",
                 kernels::device_name(context.device));
  }
  return each * context.mesh.shape().world_size();
}

}  // namespace pptrain::app

// The options of [metrics].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {

void add_metrics(std::vector<Option>& options) {
  SectionFields<MetricsSection> metrics(
      options, "metrics", [](JobConfig& j) -> MetricsSection& { return j.metrics; }, Effect::none);
  metrics("log_interval", &MetricsSection::log_interval, "Steps between lines of the log.")
      .between(1, max_steps);
  metrics("peak_tflops", &MetricsSection::peak_tflops,
          "Peak TFLOP/s of one rank's device, for mfu. 0: the data sheet's dense bf16 rate of a known GPU, "
          "or the rate of a CPU's fastest GEMM, timed twice at the start, for 0.2 s. A step faster than "
          "this peak raises the peak, so mfu never exceeds 100 %.")
      .between(0.0, 1e6);
  metrics(
      "microbatch_losses", &MetricsSection::microbatch_losses,
      "Also writes the loss of each microbatch of a step, over all data-parallel ranks, to metrics.jsonl.");
  metrics("tensorboard", &MetricsSection::tensorboard,
          "Also writes the metrics of each step and evaluation to run.dir/tensorboard, as TensorBoard's "
          "event files.");
  metrics("prometheus_file", &MetricsSection::prometheus_file,
          "File NAME.prom with the latest metrics in Prometheus' text format, for the textfile collector of "
          "node_exporter. Rank 0 replaces it after each step and evaluation. Its folder must exist, and each "
          "run needs a file of its own. Like run.dir, it is relative to the current directory. Empty: off.")
      .path(Names::written);
}

}  // namespace pptrain::config

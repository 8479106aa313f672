#include "app/forecast/sureness.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {
namespace {

// Tokens a second and GPU that others published for jobs on several GPUs (TorchTitan's tables of FSDP), and
// that pptrain plan predicts for the same jobs.
struct Comparison {
  double published, planned;
};
constexpr std::array comparisons = {
    Comparison{6667, 10'366},  // Llama 3 8B, 8 H100, 2 x 8,192 tokens
    Comparison{2973, 3487},    // Llama 3 8B, 64 A100
    Comparison{331, 395},      // Llama 3 70B, 64 A100
};

}  // namespace

std::string Sureness::describe_range(double step_time) const {
  if (!has_range()) return "";
  return fmt::format("published runs of others took {:.2f} to {:.2f} times as long as planned: here {} to {}",
                     least, most, schedule::format_seconds(least * step_time),
                     schedule::format_seconds(most * step_time));
}

Sureness sureness_of(const CostSource& source, int world) {
  if (source.from_trace)
    // A trace of one layout predicts others to 0.91 to 1.02 of the step (README.md).
    return {.text = "costs measured by a run", .least = 1 / 1.02, .most = 1 / 0.91};
  if (source.device.is_cpu)
    return {.text = source.product_flops ? "costs measured on this machine, links between ranks modelled"
                                         : "modelled; no pass was measured"};
  if (world == 1) return {.text = "modelled; no pass was measured"};
  const auto longer = [](const Comparison& c) { return c.planned / c.published; };
  const auto [least, most] = std::ranges::minmax(comparisons, {}, longer);
  return {
      .text = "modelled; links between GPUs never measured", .least = longer(least), .most = longer(most)};
}

}  // namespace pptrain::app

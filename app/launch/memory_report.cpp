#include "app/launch/memory_report.h"

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <exception>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "core/metrics/memory.h"

namespace pptrain::app {

namespace {

double in_gb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace

std::string describe_memory(const Plan& plan, int rank, int ranks_here, at::Device device) {
  std::string text;
  try {
    const int pp = mesh::coordinates(plan.mesh, rank)[static_cast<int>(mesh::Axis::pp)];
    const RankBytes bytes = predict(plan, make_cost_source(plan, "")).bytes.at(static_cast<size_t>(pp));
    std::string kinds;
    for (const auto& [kind, count] : bytes.kinds())
      kinds += fmt::format("{}{} {:.3f}", kinds.empty() ? "" : ", ", kind, in_gb(count));
    text = fmt::format("\npptrain plan foretells {:.3f} GB for this rank ({}), beside what the program takes",
                       in_gb(bytes.total()), kinds);
    if (ranks_here > 1) text += fmt::format("; {} ranks share this process", ranks_here);
    text += fmt::format(". At most {:.3f} GB were taken so far", in_gb(metrics::peak_memory_bytes(device)));
    text +=
        ". Use more ranks, train.recompute, or a smaller train.micro_batch_size; pptrain plan --search "
        "--memory-gb finds what fits.";
  } catch (const std::exception&) {  // memory is short
  }
  return text;
}

}  // namespace pptrain::app

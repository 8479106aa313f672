#include "app/launch/memory_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>

#include "app/forecast/costs.h"
#include "app/forecast/prediction.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/metrics/memory.h"
#include "parallel/comm/host_values.h"

namespace pptrain::app {
namespace {

// Rank 0 predicts for all: a prediction of many ranks takes up to a second.
std::vector<int64_t> agreed_bytes(comm::Communicator& world, const Plan& plan) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.mesh.pp));
  if (world.rank() == 0) bytes = host_bytes(plan);
  std::vector<double> values(bytes.begin(), bytes.end());
  comm::broadcast(world, values, 0);
  return {values.begin(), values.end()};
}

}  // namespace

std::vector<int64_t> host_bytes(const Plan& plan) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.mesh.pp));
  if (plan.job.run.device == config::Device::cpu)
    std::ranges::transform(predict(plan, make_cost_source(plan, "")).bytes, bytes.begin(), &RankBytes::total);
  return bytes;
}

int64_t program_bytes() {
  constexpr int64_t step = 10'000'000;
  return (metrics::resident_memory_bytes() + step / 2) / step * step;
}

std::string shortage(int64_t needed, int64_t available, int ranks) {
  if (needed <= available) return "";
  const auto gb = [](int64_t count) { return static_cast<double>(count) / 1e9; };
  return fmt::format(
      "the job needs {:.1f} GB on this host ({} rank{}), and {:.1f} GB are available. "
      "Use more hosts or ranks, train.recompute, or a smaller train.micro_batch_size; pptrain plan --search "
      "--memory-gb {:.1f} finds what fits. run.force_memory = true starts all the same",
      gb(needed), ranks, ranks == 1 ? "" : "s", gb(available), gb(available / ranks));
}

std::string find_shortage(comm::Communicator& world, const Plan& plan) {
  constexpr int64_t unknown = -1;
  if (plan.job.run.force_memory || plan.job.run.device != config::Device::cpu) return "";
  const std::vector<int64_t> bytes = agreed_bytes(world, plan);
  const size_t own_host = std::hash<std::string>()(host_name());
  const std::vector<size_t> hosts = comm::gather_values(world, own_host);
  const std::vector<int64_t> available = comm::gather_values(world, available_memory().value_or(unknown));
  // As the host's first rank found it, so that all its ranks say the same.
  const int64_t here = available[static_cast<size_t>(std::ranges::find(hosts, own_host) - hosts.begin())];
  if (here == unknown) return "";
  int64_t needed = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (hosts[static_cast<size_t>(rank)] == own_host)
      needed += bytes[static_cast<size_t>(mesh::coordinate(plan.mesh, rank, mesh::Axis::pp))];
  }
  return shortage(needed, here, static_cast<int>(std::ranges::count(hosts, own_host)));
}

}  // namespace pptrain::app

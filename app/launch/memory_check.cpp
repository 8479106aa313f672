#include "app/launch/memory_check.h"

#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>

#include "app/forecast/costs.h"
#include "app/forecast/plan_report.h"
#include "app/forecast/prediction.h"
#include "app/forecast/search.h"
#include "app/launch/memory_folder.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/kernels/device_name.h"
#include "core/metrics/memory.h"
#include "parallel/checkpoint/hosts.h"
#include "parallel/comm/host_values.h"

namespace pptrain::app {
namespace {

// Rank 0 predicts for all: a prediction of many ranks takes up to a second.
std::vector<int64_t> agreed_bytes(comm::Communicator& world, const Plan& plan) {
  std::vector<double> values(static_cast<size_t>(plan.mesh.pp));
  if (world.rank() == 0) {
    std::ranges::transform(training_bytes(plan), values.begin(),
                           [](const RankBytes& bytes) { return static_cast<double>(bytes.total()); });
  }
  comm::broadcast(world, values, 0);
  return {values.begin(), values.end()};
}

// Steps of more microbatches may hold more activations.
Plan of_largest_steps(const Plan& plan) {
  int64_t most = plan.job.train.grad_accum_steps;
  for (const config::BatchStep& later : plan.job.train.grad_accum_schedule)
    most = std::max(most, later.grad_accum_steps);
  return most == plan.job.train.grad_accum_steps ? plan : with_microbatches(plan, most);
}

int pipeline_rank(const Plan& plan, int rank) {
  return mesh::coordinate(plan.mesh, rank, mesh::Axis::pp);
}

// Lets LibTorch's allocator ask the driver at once for what the rank needs. Steps then hardly ask it, nor
// wait until the whole GPU has finished so that memory can be given back: it might wait for other ranks.
// Something is left for what does not come from that allocator: NCCL, links, libraries.
std::string take_from_driver(int64_t needed, c10::Device device, const MemoryFit& fit) {
  constexpr int64_t left_to_others = int64_t{1} << 30;
  c10::DeviceAllocator* const allocator = at::getDeviceAllocator(device.type());
  const auto free = static_cast<int64_t>(allocator->getMemoryInfo(device.index()).first);
  if (free < needed)
    return fmt::format(
        "{}, of which {:.1f} GB are free: other programs use the rest. run.force_memory = true "
        "starts all the same",
        fit.describe(), static_cast<double>(free) / 1e9);
  const int64_t taken = std::min(needed, free - left_to_others);
  if (taken > 0) static_cast<void>(at::empty({taken}, at::TensorOptions(device).dtype(at::kByte)));
  allocator->resetPeakStats(device.index());
  return "";
}

std::string shortage_on_gpu(const Plan& plan, int rank, int64_t needed, c10::Device device) {
  MemoryFit fit{.needed = static_cast<double>(needed),
                .room = static_cast<double>(kernels::device_memory(device)),
                .rank = pipeline_rank(plan, rank),
                .place = kernels::device_name(device)};
  return fit.fits() ? take_from_driver(needed, device, fit) : fit.shortage();
}

// The part of all copies in memory that a host keeps, if all ranks that write have parts of one size.
double share_of_copies(const Plan& plan, const checkpoint::Hosts& hosts, int host) {
  if (!hosts.several()) return 1;
  double writing = 0, here = 0;
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
    if (mesh::coordinate(plan.mesh, rank, mesh::Axis::dp_replicate) != 0) continue;
    writing += 1;
    here += (hosts.of(rank) == host ? 1 : 0) + (hosts.of(hosts.buddy(rank)) == host ? 1 : 0);
  }
  // A start may have brought the whole of a step (train/memory_saver).
  return (1 + (memory_copies - 1) * here / writing) / memory_copies;
}

std::string shortage_on_host(comm::Communicator& world, const Plan& plan, const std::vector<int64_t>& bytes) {
  constexpr int64_t unknown = -1;
  const checkpoint::Hosts hosts(comm::host_numbers(world, host_identity()));
  const int own_host = hosts.of(world.rank());
  const std::vector<int> ranks_here = hosts.ranks_of(own_host);
  const std::vector<int64_t> available = comm::gather_values(world, available_memory().value_or(unknown));
  // As the host's first rank found it, so that all its ranks report the same.
  const int64_t here = available[static_cast<size_t>(ranks_here.front())];
  if (here == unknown) return "";
  MemoryFit fit{
      .room = static_cast<double>(here), .ranks = static_cast<int>(std::ssize(ranks_here)), .of_host = true};
  for (const int rank : ranks_here)
    fit.needed += static_cast<double>(bytes[static_cast<size_t>(pipeline_rank(plan, rank))]);
  if (const int64_t copies = memory_copy_bytes(plan); copies > 0) {
    const auto kept = static_cast<double>(copies) * share_of_copies(plan, hosts, own_host);
    const auto held = static_cast<double>(MemoryFolder(plan.job.run.dir).held());  // and so not available
    fit.needed += std::max(0.0, kept - held);
  }
  return fit.fits() ? "" : fit.shortage();
}

}  // namespace

std::vector<RankBytes> training_bytes(const Plan& plan) {
  return predict(of_largest_steps(plan), make_cost_source(plan, "")).bytes;
}

int64_t program_bytes() {
  constexpr int64_t step = 10'000'000;
  return (metrics::resident_memory_bytes() + step / 2) / step * step;
}

std::optional<MemoryFit> fit_here(const Plan& plan, int64_t program) {
  const CostSource source = make_cost_source(plan, "");
  const std::vector<RankBytes> bytes = predict(of_largest_steps(plan), source).bytes;
  if (plan.job.run.device == config::Device::cpu) {
    const std::optional<int64_t> available = available_memory();
    if (!available) return std::nullopt;
    return fit_on_host(plan, bytes, program, static_cast<double>(*available));
  }
  if (kernels::gpu_count() == 0)
    return fit_on_gpu(bytes, memory_budget(plan, source), fmt::format("one {}", source.device.name));
  const c10::Device first(c10::kCUDA, 0);
  return fit_on_gpu(bytes, static_cast<double>(kernels::device_memory(first)), kernels::device_name(first));
}

std::string find_shortage(comm::Communicator& world, const Plan& plan, c10::Device device) {
  if (plan.job.run.force_memory) return "";
  comm::Communicator& host = world.host();
  const std::vector<int64_t> bytes = agreed_bytes(host, plan);
  if (device.is_cpu()) return shortage_on_host(host, plan, bytes);
  return shortage_on_gpu(plan, world.rank(), bytes[static_cast<size_t>(pipeline_rank(plan, world.rank()))],
                         device);
}

}  // namespace pptrain::app

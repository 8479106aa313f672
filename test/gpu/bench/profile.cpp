#include "test/gpu/bench/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

namespace pptrain::bench {

std::vector<ProfiledKernel> profile(c10::Device device, const std::function<void()>& work) {
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities{device.is_cuda() ? ActivityType::CUDA : ActivityType::CPU};
  if (!device.is_cuda())
    setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // it reports that there is no GPU
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  work();
  const auto result = torch::autograd::profiler::disableProfiler();
  std::map<std::string, ProfiledKernel> kernels;
  for (const auto& event : result->events()) {
    if (event.deviceType() != device.type()) continue;
    ProfiledKernel& kernel = kernels[event.name()];
    kernel.name = event.name();
    ++kernel.calls;
    kernel.seconds += static_cast<double>(event.durationNs()) * 1e-9;
  }
  std::vector<ProfiledKernel> sorted;
  for (auto& [name, kernel] : kernels) sorted.push_back(std::move(kernel));
  std::ranges::stable_sort(sorted, std::ranges::greater(), &ProfiledKernel::seconds);
  return sorted;
}

}  // namespace pptrain::bench

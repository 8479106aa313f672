#include "test/gpu/bench/bench.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/metrics/memory.h"
#include "core/metrics/peak_flops.h"

namespace pptrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kGroups = 9;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

models::ModelConfig Sizes::model(int64_t layers) const {
  return {.arch = "llama",
          .layers = layers,
          .hidden = hidden,
          .intermediate = ffn,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .vocab = vocab,
          .max_seq = max_rows(),
          .rope_theta = 500000,
          .rope_scaling = {},
          .norm_eps = 1e-5};
}

Sizes llama3_8b() {
  return {.hidden = 4096,
          .ffn = 14336,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocab = 128256,
          .rows = {4096, 8192},
          .sequences = {1024, 4096, 8192}};
}

Sizes small_sizes() {
  return {.hidden = 128,
          .ffn = 384,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .vocab = 512,
          .rows = {64, 128},
          .sequences = {32, 128}};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Bench::Bench(at::Device device, bool small, double seconds)
    : device_(device),
      small_(small),
      sustained_seconds_(seconds),
      sizes_(small ? small_sizes() : llama3_8b()) {
  at::manual_seed(1);
  at::empty({1}, at::TensorOptions().device(device));  // the device's context begins here
  peak_flops_ = metrics::peak_flops(device, /*bf16=*/true);
}

at::Tensor Bench::random_on(at::Device device, at::IntArrayRef shape, at::ScalarType type, double scale) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  if (device.is_meta()) return at::empty(shape, options);
  return at::randn(shape, options).mul_(scale);
}

at::Tensor Bench::random_integers_on(at::Device device, int64_t high, int64_t count) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  if (device.is_meta()) return at::empty({count}, options);
  return at::randint(high, {count}, options);
}

size_t Bench::sets(double bytes) const {
  const double beyond_caches = small_ ? 1e5 : 256e6;  // an H200's L2 holds 60 MB
  return static_cast<size_t>(std::clamp(std::ceil(beyond_caches / std::max(bytes, 1.0)), 1.0, 16.0));
}

void Bench::synchronise() const {
  if (!device_.is_cpu()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
}

void Bench::reset_memory() const {
  if (device_.is_cpu()) return;
  synchronise();
  c10::DeviceAllocator* const allocator = at::getDeviceAllocator(device_.type());
  allocator->emptyCache();
  allocator->resetPeakStats(device_.index());
}

int64_t Bench::peak_memory_bytes() const {
  return metrics::peak_memory_bytes(device_);
}

std::vector<double> Bench::intervals(const std::function<void(pipeline::TimeMarks&)>& work) {
  synchronise();
  marks_.reset(device_);
  work(marks_);
  const auto times = marks_.times();
  std::vector<double> result;
  for (size_t i = 1; i < times.size(); ++i)
    result.push_back(std::chrono::duration<double>(times[i] - times[i - 1]).count());
  return result;
}

Timing Bench::measure(const std::function<void(int64_t)>& work) {
  int64_t next = 0;
  const auto run = [&](int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) work(next++);
  };
  const auto run_alone = [&](int64_t calls) {
    return intervals([&](pipeline::TimeMarks& marks) {
             marks.mark();
             run(calls);
             marks.mark();
           }).front() /
           static_cast<double>(calls);
  };
  run_alone(3);  // libraries choose and load their kernels
  const double estimate = run_alone(3);
  const double group_seconds = seconds_a_figure() / kGroups;
  const auto calls = static_cast<int64_t>(std::clamp(group_seconds / std::max(estimate, 1e-7), 1.0, 200.0));
  std::vector<double> host;
  std::vector<double> device = intervals([&](pipeline::TimeMarks& marks) {
    marks.mark();
    for (int group = 0; group < kGroups; ++group) {
      const Clock::time_point start = Clock::now();
      run(calls);
      host.push_back(seconds_since(start) / static_cast<double>(calls));
      marks.mark();
    }
  });
  for (double& seconds : device) seconds /= static_cast<double>(calls);
  const auto [fastest, slowest] = std::minmax_element(device.begin(), device.end());
  return {.seconds = median(device),
          .fastest = *fastest,
          .slowest = *slowest,
          .host_seconds = std::ranges::min(host),
          .calls = calls * kGroups};
}

const Bench::Copy& Bench::copy() {
  if (!copy_) {
    const int64_t bytes = small_ ? 4 << 20 : int64_t{2} << 30;
    const at::Tensor from = random({bytes / 4}, at::kFloat);
    at::Tensor to = at::empty_like(from);
    copy_ =
        Copy{.bytes = 2 * static_cast<double>(bytes), .timing = measure([&](int64_t) { to.copy_(from); })};
  }
  return *copy_;
}

}  // namespace pptrain::bench

#include "core/kernels/kernel_times.h"

#include <chrono>
#include <utility>

namespace pptrain::kernels {
namespace {

thread_local KernelClock* innermost_clock = nullptr;

}  // namespace

KernelClock::KernelClock(KernelTimes& times) : outer_(std::exchange(innermost_clock, this)), times_(&times) {}

KernelClock::~KernelClock() {
  innermost_clock = outer_;
}

bool KernelClock::runs() {
  return innermost_clock != nullptr;
}

void KernelClock::time(const KernelCall& call, const Cost& cost, c10::function_ref<void()> work) {
  if (!runs()) return work();
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  work();
  KernelTime& time = (*innermost_clock->times_)[call];
  time.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  time.cost += cost;
  ++time.calls;
}

}  // namespace pptrain::kernels

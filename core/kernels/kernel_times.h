// How long kernels take on the CPU, in addition to what they cost: where the time of a step goes.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/kernels/cost.h"

namespace pptrain::kernels {

// A kernel by its name, which lives as long as the program; a GEMM by its shape too.
using KernelCall = std::pair<std::string_view, std::optional<GemmShape>>;

// Time of all calls of one kernel (a GEMM: of one shape).
struct KernelTime {
  int64_t calls = 0;
  double seconds = 0;
  Cost cost;
};

using KernelTimes = std::map<KernelCall, KernelTime>;

// While it lives, adds the kernels that its thread calls on tensors in the CPU's memory to `times`, which
// must outlive it. Clocks of one thread may nest: the innermost alone counts. It ends on the thread that
// began it, and the inner one first.
class KernelClock {
 public:
  explicit KernelClock(KernelTimes& times);
  ~KernelClock();
  KernelClock(const KernelClock&) = delete;
  KernelClock& operator=(const KernelClock&) = delete;

  // Whether this thread has a clock.
  static bool runs();
  // Does the work, and counts it if this thread has a clock: two clock reads and a look-up.
  static void time(const KernelCall& call, const Cost& cost, c10::function_ref<void()> work);

 private:
  KernelClock* outer_;
  KernelTimes* times_;
};

}  // namespace pptrain::kernels

#include "core/optim/balance.h"

#include <ATen/ops/sign.h>

namespace pptrain::optim {

// A handful of values: ATen's operators, each of which rounds once, wherever an element lies.
void Balance::step(std::span<Run> runs, const StepArguments& /*arguments*/) {
  for (Run& run : runs) {
    run.now.master.sub_(at::sign(run.grad).mul_(rate_));
    if (run.compute) run.compute->copy_(run.now.master);
  }
}

}  // namespace pptrain::optim

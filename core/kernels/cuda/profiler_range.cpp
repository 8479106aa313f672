#include "core/kernels/profiler_range.h"

#include <nvtx3/nvToolsExt.h>

namespace pptrain::kernels {

ProfilerRange::ProfilerRange(const std::string& name) {
  nvtxRangePushA(name.c_str());
}

ProfilerRange::~ProfilerRange() {
  nvtxRangePop();
}

}  // namespace pptrain::kernels

#include "core/kernels/profiler_range.h"

namespace pptrain::kernels {

ProfilerRange::ProfilerRange(const std::string&) {}

ProfilerRange::~ProfilerRange() = default;

}  // namespace pptrain::kernels

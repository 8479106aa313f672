// Names for what profilers such as Nsight Systems show of a thread's time.
#pragma once

#include <string>

namespace pptrain::kernels {

// A range, from here to the end of its scope: NVTX in a build with CUDA, nothing without.
class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace pptrain::kernels

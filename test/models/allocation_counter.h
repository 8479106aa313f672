// Counts the bytes of CPU tensors that this thread allocates and frees.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace pptrain::test {

class AllocationCounter {
 public:
  int64_t now() const { return reports_->now; }
  // The peak since the last call of restart().
  int64_t peak() const { return reports_->peak; }
  void restart() { reports_->peak = reports_->now; }

 private:
  struct Reports final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      now += size;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0;
    int64_t peak = 0;
  };
  std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, reports_};
};

// oneDNN packs bfloat16 weights into scratch memory of a size that depends on the CPU, so it is not counted.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledMkldnn();
};

}  // namespace pptrain::test

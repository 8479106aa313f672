#include "test/gpu/bench/host_waits.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <string_view>

namespace pptrain::bench {
namespace {

class Counter final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (std::string_view(warning.msg()).find("synchronizing CUDA operation") != std::string_view::npos)
      ++count;
  }
  int64_t count = 0;
};

class WarnOfWaits {
 public:
  WarnOfWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN); }
  ~WarnOfWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  WarnOfWaits(const WarnOfWaits&) = delete;
  WarnOfWaits& operator=(const WarnOfWaits&) = delete;
};

}  // namespace

std::optional<int64_t> count_host_waits(const std::function<void()>& work) {
  Counter counter;
  const c10::WarningUtils::WarningHandlerGuard guard(&counter);
  const WarnOfWaits mode;
  work();
  return counter.count;
}

}  // namespace pptrain::bench

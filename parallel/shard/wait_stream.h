// A stream for work that waits for other work, so that the rank's own stream does not.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace pptrain::shard {

class WaitStream {
 public:
  // None on a CPU. The same one each time, and not the current one: LibTorch's pool of 32 goes round, and
  // gives the rank's own stream too.
  std::optional<c10::Stream> get(c10::Device device) {
    if (device.is_cpu()) return std::nullopt;
    const c10::impl::VirtualGuardImpl guard(device.type());
    while (!stream_ || *stream_ == guard.getStream(device))
      stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
    return stream_;
  }

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace pptrain::shard

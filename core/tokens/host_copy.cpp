#include "core/tokens/host_copy.h"

namespace pptrain::tokens {

// Of other than pinned memory the host waits for the copy, and so for all that the stream holds. Pinned
// memory that a copy still reads is not handed out again before the copy is done.
at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

}  // namespace pptrain::tokens

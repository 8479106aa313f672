// Values of the host on their way to a device.
#pragma once

#include <ATen/core/Tensor.h>

namespace pptrain::tokens {

// `host`: a CPU tensor -> the same on `device`, in the order of its current stream; the host does not wait.
// On the CPU it is the tensor itself.
at::Tensor to_device(const at::Tensor& host, at::Device device);

}  // namespace pptrain::tokens

// What a device could do at most, for the model FLOPs utilisation.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace pptrain::metrics {

// Published dense bf16 FLOP/s of the GPU of that name as CUDA gives it, such as "NVIDIA H100 80GB HBM3"; 0
// where it is not in the table. Words count whole: an L40 is no L4.
double known_peak_flops(std::string_view device_name);

// FLOP/s of one rank's device: the published dense bf16 rate of a known GPU (for float32 jobs too), and on
// a CPU the best of a few matrix products [1024 x 1024] run now with this thread's number of threads (about
// 20 ms). 0 for a GPU that is not in the table.
double peak_flops(c10::Device device, bool bf16);

}  // namespace pptrain::metrics

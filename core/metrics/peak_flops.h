// What a device could do at most, for the model FLOPs utilisation.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace pptrain::metrics {

// Published dense bf16 FLOP/s of the GPU of that name as CUDA gives it, such as "NVIDIA H100 80GB HBM3"; 0 if
// it is not in the table. Words count whole: an L40 is no L4.
double known_peak_flops(std::string_view device_name);

// FLOP/s of one rank's device. Of a known GPU it is the published dense bf16 rate (for float32 jobs too); 0
// for a GPU that is not in the table. On a CPU it is the rate of the fastest GEMM that the layers can call,
// timed now with this thread's number of threads: forward, input gradient and weight gradient, in float32 and
// for bf16 jobs in bf16 too. That takes about 0.2 s, however slow one of the types is here. Each rate is
// the best of several short calls, of one thread by its processor time, so that other work on the same cores
// hardly lowers it.
double peak_flops(c10::Device device, bool bf16);

// MFU, in (0, 1], of a step that did `flops` useful FLOP/s on devices that could do `peak`; 0 if the peak is
// not known (0). A step that is faster than the peak proves it too low, and becomes the peak.
double utilization(double flops, double& peak);

}  // namespace pptrain::metrics

// What a device does in a second, for predictions: rates that large GEMMs and long copies reach, not peaks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/kernels/device_name.h"

namespace pptrain::app {

// A link from one rank to others.
struct Link {
  double bandwidth;  // B/s that a rank sends
  double latency;    // s of a message
};

struct DeviceModel {
  std::string_view name;
  double bfloat16_flops;    // of GEMMs, FLOP/s
  double float32_flops;     // FLOP/s
  double fp8_saving;        // part of the time of a GEMM in bfloat16 that FP8 saves; 0: none, or no FP8
  double attention;         // part of these rates that attention's GEMMs reach
  double memory_bandwidth;  // B/s
  Link within_host;         // to ranks of the same host
  Link between_hosts;       // to ranks of other hosts; each rank has one of its own
  int ranks_per_host;       // 0: all ranks are on one host
  double launch;            // s of a kernel that has nothing to do
  double memory;            // bytes; 0: not known
  kernels::GpuKind gpu;     // as its libraries see it; no GPU: a CPU
  // A CPU: the rates are of one thread. The threads that compute also copy and add up what ranks exchange, so
  // no exchange overlaps with a pass.
  bool is_cpu = false;
  double block_bandwidth = 20e9;  // of a thread block of NCCL's, B/s, on any GPU; not measured
};

// By name, ignoring case. Throws UsageError that names the known devices.
const DeviceModel& find_device(std::string_view name);
std::vector<std::string_view> device_names();

}  // namespace pptrain::app

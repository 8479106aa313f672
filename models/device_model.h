// What a device does in a second, for predictions: rates that large products and long copies reach, not
// peaks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pptrain::models {

struct DeviceModel {
  std::string_view name;
  double bfloat16_flops;    // of matrix products, FLOP/s
  double float32_flops;     // FLOP/s
  double attention;         // of these rates, the part that attention's products reach
  double memory_bandwidth;  // B/s
  double link_bandwidth;    // B/s from one pipeline rank to the next
  double link_latency;      // s of a message
  double launch;            // s of a kernel that has nothing to do
  double memory;            // bytes; 0: not known
};

// By name, in any case of letters. Throws UsageError that names those there are.
const DeviceModel& find_device(std::string_view name);
std::vector<std::string_view> device_names();

}  // namespace pptrain::models

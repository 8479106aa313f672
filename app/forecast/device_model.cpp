#include "app/forecast/device_model.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/base/error.h"

namespace pptrain::app {
namespace {

// GPUs: 80 % of the data sheet's dense rates (on an H200 cuBLAS reaches 790 of 989 TFLOP/s). 90 % of its
// memory and NVLink bandwidth. Hosts of 8, with one InfiniBand adapter a GPU (200 Gb/s with an A100, 400 Gb/s
// with the others), 90 % of it. FP8 at 1.6 times the rate of bfloat16, the low end of what others report for
// GEMMs with a scale for each row; not measured.
//
// cpu: one core of a Xeon with AVX512-BF16 that runs alone, as measured. All ranks on one host; between hosts
// 10 Gb/s Ethernet, 90 % of it.
constexpr double fp8_saving = 1 - 1 / 1.6;
constexpr std::array<DeviceModel, 5> devices{{
    {"cpu", 515e9, 110e9, 0, 0.3, 8e9, {4e9, 30e-6}, {1.1e9, 60e-6}, 0, 1e-6, 0, {}, true},
    {"a100", 250e12, 15e12, 0, 0.6, 1.8e12, {270e9, 10e-6}, {22e9, 20e-6}, 8, 4e-6, 80e9, {80, 108}},
    {"h100", 790e12, 53e12, fp8_saving, 0.6, 3.0e12, {400e9, 10e-6}, {45e9, 20e-6}, 8, 4e-6, 80e9, {90, 132}},
    {"h200",
     790e12,
     53e12,
     fp8_saving,
     0.6,
     4.3e12,
     {400e9, 10e-6},
     {45e9, 20e-6},
     8,
     4e-6,
     141e9,
     {90, 132}},
    {"b200",
     1800e12,
     64e12,
     fp8_saving,
     0.6,
     7.2e12,
     {800e9, 10e-6},
     {45e9, 20e-6},
     8,
     4e-6,
     180e9,
     {100, 148}},
}};

bool same_name(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

}  // namespace

const DeviceModel& find_device(std::string_view name) {
  for (const DeviceModel& device : devices) {
    if (same_name(device.name, name)) return device;
  }
  throw UsageError(fmt::format("there is no model of a device \"{}\"; there are: {}", name,
                               fmt::join(device_names(), ", ")));
}

std::vector<std::string_view> device_names() {
  std::vector<std::string_view> names;
  for (const DeviceModel& device : devices) names.push_back(device.name);
  return names;
}

}  // namespace pptrain::app

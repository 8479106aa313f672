// GPUs as cuDNN describes them (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, cuDNN 9.19).
#pragma once

#include <cstddef>
#include <string>

namespace stand_in {

struct Gpu {
  int capability;  // 90 is 9.0
  const char* name;
  int multiprocessors;
  int shared_bytes;  // limit of a block
  unsigned memory_gib;
};

inline constexpr Gpu kA100{80, "NVIDIA A100-SXM4-80GB", 108, 166912, 80};
inline constexpr Gpu kH200{90, "NVIDIA H200", 132, 232448, 140};
inline constexpr Gpu kB200{100, "NVIDIA B200", 148, 232448, 180};

// Limits for all three from CUDA's programming guide; clocks and cache of the H200.
inline std::string described_device(const Gpu& gpu) {
  return R"({"cudnnVersion": 91900, "schemaVersion": 1, "driverVer": 13000, "cudaDeviceId": 0, "pciDeviceId": 0,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
    "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "l2CacheSize": 62914560, "deviceVer": )" +
         std::to_string(gpu.capability * 10) +
         ", \"totalGlobalMem\": " + std::to_string(size_t{gpu.memory_gib} << 30) +
         ", \"multiProcessorCount\": " + std::to_string(gpu.multiprocessors) +
         ", \"maxSharedMemoryPerBlockOptin\": " + std::to_string(gpu.shared_bytes) + ", \"deviceName\": \"" +
         gpu.name + "\"}";
}

}  // namespace stand_in

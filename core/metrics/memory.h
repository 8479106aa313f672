// How much memory the run has taken.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace pptrain::metrics {

// Peak so far, in bytes: resident memory of this process (all its ranks) for the CPU, else what the device's
// allocator handed out.
int64_t peak_memory_bytes(c10::Device device);

// Resident memory of this process now, in bytes; 0 if the system does not say.
int64_t resident_memory_bytes();

}  // namespace pptrain::metrics

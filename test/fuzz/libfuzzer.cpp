// libFuzzer's entry to the target that PPTRAIN_FUZZ_TARGET names; compiled once for each.
#include <cstddef>
#include <cstdint>

#include "test/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pptrain::fuzz::PPTRAIN_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}

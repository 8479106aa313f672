// What the reader and the writer of safetensors share.
#pragma once

#include <cstdint>

namespace pptrain::io {

inline constexpr uint64_t max_header_bytes = 100'000'000;
inline constexpr const char* metadata_key = "__metadata__";

}  // namespace pptrain::io

// What the reader and the writer of safetensors share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"

namespace pptrain::io {

inline constexpr uint64_t max_header_bytes = 100'000'000;
inline constexpr const char* metadata_key = "__metadata__";

// A tensor as the header describes it; offsets count from the end of the header.
struct DescribedTensor {
  TensorSpec spec;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  uint64_t bytes = 0;  // that it takes at the beginning of the file, its length included
  Metadata metadata;
  std::vector<DescribedTensor> tensors;  // in the order of their bytes, without a gap from 0 on

  uint64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// Of a file that begins with these bytes. Throws Error, which begins with `file`, where the header is not
// whole or breaks a rule of the format.
Header parse_header(std::span<const std::byte> bytes, const std::string& file);

}  // namespace pptrain::io

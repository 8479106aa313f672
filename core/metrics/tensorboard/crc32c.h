// CRC-32C (Castagnoli, RFC 3720), and how TFRecord files mask it.
#pragma once

#include <cstdint>
#include <string_view>

namespace pptrain::metrics {

uint32_t crc32c(std::string_view bytes);

// As TensorFlow stores it beside data: rotated right by 15 bits, plus a constant, so that a checksum of bytes
// that hold checksums is no weaker.
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace pptrain::metrics

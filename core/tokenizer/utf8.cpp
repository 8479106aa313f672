#include "core/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace pptrain::tokenizer {
namespace {

struct Sequence {
  size_t size;  // bytes of the code point, or of the part that is wrong
  bool valid;
};

// The table 3-7 of the Unicode Standard. `bytes` is not empty.
Sequence sequence_at(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const size_t size = code_point_size(static_cast<char>(lead));
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < size; ++i) {
    if (i >= bytes.size() || byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf)) {
      return {i, false};
    }
  }
  return {size, true};
}

}  // namespace

void append_utf8(std::string& text, uint32_t c) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xc0 | c >> 6);
    add(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    add(0xe0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  } else {
    add(0xf0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3f));
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  }
}

size_t valid_utf8_prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    uint64_t eight;
    if (at + sizeof(eight) <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const Sequence next = sequence_at(bytes.substr(at));
    if (!next.valid) return at;
    at += next.size;
  }
  return at;
}

void append_repaired(std::string& text, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    text += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    text += replacement_character;
    bytes.remove_prefix(sequence_at(bytes).size);
  }
}

}  // namespace pptrain::tokenizer

// A range of a list, or of a stream, of tokens.
#pragma once

#include <cstdint>

namespace pptrain::tokens {

// Tokens [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

}  // namespace pptrain::tokens

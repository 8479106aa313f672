// UTF-8, one code point at a time; properties of characters and normal forms as the Python package
// `tokenizers` has them: utf8proc's tables with the differences of unicode_differences.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pptrain::tokenizer {

struct CodePoint {
  uint32_t value;
  uint32_t size;  // bytes
};

// The code point at `at`, of valid UTF-8.
inline CodePoint code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// Bytes of the code point that begins with this byte, of valid UTF-8.
inline size_t code_point_size(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// First byte of the code point that ends before `end`; end > 0, valid UTF-8.
inline size_t previous_code_point(std::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

void append_utf8(std::string& text, uint32_t code_point);

using Category = std::array<char, 2>;  // "Lu"
// The general category in utf8proc's Unicode.
Category general_category(uint32_t c);

constexpr std::string_view replacement_character = "\xef\xbf\xbd";  // U+FFFD

// Bytes of the longest beginning that is valid UTF-8.
size_t valid_utf8_prefix(std::string_view bytes);

// Appends the text with U+FFFD for each maximal part of a code point that is cut or wrong, as the Unicode
// Standard recommends (chapter 3, "U+FFFD Substitution of Maximal Subparts"), and as Python's
// errors="replace" and Rust's from_utf8_lossy do.
void append_repaired(std::string& text, std::string_view bytes);

inline bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
inline bool is_ascii_alphanumeric(char c) {
  return is_ascii_digit(c) || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_white_space(uint32_t c);  // White_Space: Rust's char::is_whitespace
// First byte of the white space before `end`, and end of the white space from `begin` on. Valid UTF-8.
size_t blanks_begin(std::string_view text, size_t end);
size_t blanks_end(std::string_view text, size_t begin);
bool is_number(uint32_t c);       // N: Rust's char::is_numeric
bool is_word(uint32_t c);         // \w of Rust's regular expressions
bool is_mark(uint32_t c);         // what StripAccents takes
bool is_punctuation(uint32_t c);  // what Punctuation cuts at

// Appends the lower case of one character, which may be two.
void append_lower(std::string& text, uint32_t c);

// Is there a character that needs a rewritten pattern (newer than PCRE2's Unicode, or U+180E)? Valid UTF-8.
bool has_newer_character(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Appends the normal form of valid UTF-8. Returns false, and appends nothing, if the text has it already.
bool append_normal_form(std::string& out, std::string_view text, NormalForm form);

}  // namespace pptrain::tokenizer

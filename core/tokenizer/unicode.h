// Properties of characters and normal forms as the Python package `tokenizers` has them: utf8proc's tables
// with the differences of unicode_differences.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pptrain::tokenizer {

bool is_white_space(uint32_t c);  // White_Space: Rust's char::is_whitespace
bool is_number(uint32_t c);       // N: Rust's char::is_numeric
bool is_word(uint32_t c);         // \w of Rust's regular expressions
bool is_mark(uint32_t c);         // what StripAccents takes

// Appends the lower case of one character, which may be two.
void append_lower(std::string& text, uint32_t c);

// Is there a character that needs a rewritten pattern (newer than PCRE2's Unicode, or U+180E)? Valid UTF-8.
bool has_newer_character(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Appends the normal form of valid UTF-8. Returns false, and appends nothing, where the text has it already.
bool append_normal_form(std::string& out, std::string_view text, NormalForm form);

}  // namespace pptrain::tokenizer

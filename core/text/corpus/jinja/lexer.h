// A template's source as tokens, white space around its tags removed as transformers' templates have it:
// trim_blocks and lstrip_blocks are on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::jinja {

enum class TokenKind {
  text,
  print_begin,
  print_end,
  tag_begin,
  tag_end,
  name,
  string,
  integer,
  number,
  sign,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // of a string: what it stands for
  int64_t line = 1;
};

// Throws Error with the line if the source is no template.
std::vector<Token> tokenize(std::string_view source);

}  // namespace pptrain::jinja

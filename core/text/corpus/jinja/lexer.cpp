#include "core/text/corpus/jinja/lexer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "core/base/error.h"
#include "core/text/corpus/jinja/text.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::jinja {
namespace {

bool is_name_character(char c) {
  return tokenizer::is_ascii_alphanumeric(c) || c == '_';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    for (size_t i = 0; i < source.size(); ++i) {  // line ends as Jinja reads them
      const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
      if (!pair) source_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t begin = next_tag();
      take_text(begin);
      if (begin == source_.size()) break;
      at_ = begin + 2;
      const char kind = source_[begin + 1];
      if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
      if (kind == '#') {
        take_comment();
      } else {
        take_code(kind);
      }
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("line {}: {}", line(), what));
  }

  int64_t line() const {
    return 1 + std::count(source_.begin(),
                          source_.begin() + static_cast<ptrdiff_t>(std::min(at_, source_.size())), '\n');
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line()}); }

  // Where "{{", "{%" or "{#" begins.
  size_t next_tag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  // `text` without the blanks that belong to the tag which begins at `end`.
  std::string_view before_tag(std::string_view text, size_t end) const {
    if (end == source_.size()) return text;
    const char mark = end + 2 < source_.size() ? source_[end + 2] : ' ';
    if (mark == '-') return strip(text, "", false, true);
    if (mark == '+' || source_[end + 1] == '{') return text;
    const size_t new_line = text.rfind('\n');
    const size_t begin = new_line == std::string_view::npos ? 0 : new_line + 1;
    const bool whole_line = begin > 0 || at_line_begin_;
    return whole_line && strip(text.substr(begin), "", true, false).empty() ? text.substr(0, begin) : text;
  }

  void take_text(size_t end) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (strips_next_) text = strip(text, "", true, false);
    text = before_tag(text, end);
    if (!text.empty()) add(TokenKind::text, std::string(text));
    strips_next_ = false;
    at_line_begin_ = false;
  }

  // Behind the end of a tag or comment, which a line's end belongs to.
  void end_block(bool strips, bool keeps) {
    strips_next_ = strips;
    at_line_begin_ = false;
    if (strips || keeps || at_ >= source_.size() || source_[at_] != '\n') return;
    ++at_;
    at_line_begin_ = true;
  }

  void take_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail("a comment has no end");
    const char mark = source_[end - 1];
    at_ = end + 2;
    end_block(mark == '-', mark == '+');
  }

  // The tokens of "{{ ... }}" or "{% ... %}".
  void take_code(char kind) {
    const bool print = kind == '{';
    add(print ? TokenKind::print_begin : TokenKind::tag_begin, "");
    int depth = 0;  // of brackets, in which "}}" ends no tag
    for (;;) {
      const std::string_view rest = strip(std::string_view(source_).substr(at_), "", true, false);
      at_ = source_.size() - rest.size();
      if (rest.empty()) fail("a tag has no end");
      if (depth == 0 && take_end(rest, print)) return;
      take_token(rest, depth);
    }
  }

  // Does `rest` begin with a tag's end? Then takes it.
  bool take_end(std::string_view rest, bool print) {
    const std::string_view close = print ? "}}" : "%}";
    const bool may_mark = rest.front() == '-' || (rest.front() == '+' && !print);
    const bool marked = may_mark && rest.substr(1).starts_with(close);
    if (!marked && !rest.starts_with(close)) return false;
    const char mark = marked ? rest.front() : ' ';
    at_ += marked ? 3 : 2;
    add(print ? TokenKind::print_end : TokenKind::tag_end, "");
    if (print) {
      strips_next_ = mark == '-';
      at_line_begin_ = false;
    } else {
      end_block(mark == '-', mark == '+');
    }
    return true;
  }

  void take_token(std::string_view rest, int& depth) {
    const char first = rest.front();
    if (first == '\'' || first == '"') return take_string(first);
    if (tokenizer::is_ascii_digit(first)) return take_number(rest);
    if (is_name_character(first)) {
      size_t size = 1;
      while (size < rest.size() && is_name_character(rest[size])) ++size;
      add(TokenKind::name, std::string(rest.substr(0, size)));
      at_ += size;
      return;
    }
    constexpr std::array signs = std::to_array<std::string_view>(
        {"==", "!=", "<=", ">=", "//", "**", "(", ")", "[", "]", "{", "}", ",",
         ":",  ".",  "|",  "+",  "-",  "*",  "/", "%", "~", "=", "<", ">"});
    const auto* const sign =
        std::ranges::find_if(signs, [&](std::string_view s) { return rest.starts_with(s); });
    if (sign == signs.end()) fail(fmt::format("unexpected character '{}'", first));
    if (*sign == "(" || *sign == "[" || *sign == "{") ++depth;
    if (*sign == ")" || *sign == "]" || *sign == "}") --depth;
    add(TokenKind::sign, std::string(*sign));
    at_ += sign->size();
  }

  void take_number(std::string_view rest) {
    size_t size = 0;
    while (size < rest.size() && tokenizer::is_ascii_digit(rest[size])) ++size;
    const bool fraction =
        size + 1 < rest.size() && rest[size] == '.' && tokenizer::is_ascii_digit(rest[size + 1]);
    if (fraction)
      for (++size; size < rest.size() && tokenizer::is_ascii_digit(rest[size]);) ++size;
    const bool leading_zero = !fraction && size > 1 && rest.front() == '0';
    if (size > 18 || leading_zero || (size < rest.size() && is_name_character(rest[size])))
      fail("a number of this form is not supported");
    add(fraction ? TokenKind::number : TokenKind::integer, std::string(rest.substr(0, size)));
    at_ += size;
  }

  void take_string(char quote) {
    std::string text;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] == '\\') {
        take_escape(text);
      } else {
        text += source_[at_];
      }
    }
    if (at_ >= source_.size()) fail("a text has no end");
    ++at_;
    add(TokenKind::string, std::move(text));
  }

  // As Python reads it.
  void take_escape(std::string& text) {
    const char c = ++at_ < source_.size() ? source_[at_] : '\0';
    constexpr std::string_view names = "ntrabfv\\'\"", meanings = "\n\t\r\a\b\f\v\\'\"";
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      uint32_t value = 0;
      const char* const begin = source_.data() + at_ + 1;
      const bool fits = at_ + digits < source_.size();
      if (!fits || std::from_chars(begin, begin + digits, value, 16).ptr != begin + digits ||
          value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        fail("an escape in a text is wrong");
      tokenizer::append_utf8(text, value);
      at_ += digits;
    } else if (c >= '0' && c <= '7') {  // up to three octal digits
      uint32_t value = 0;
      const char* const begin = source_.data() + at_;
      const char* const most = begin + std::min<size_t>(3, source_.size() - at_);
      const char* const end = std::from_chars(begin, most, value, 8).ptr;
      tokenizer::append_utf8(text, value);
      at_ += static_cast<size_t>(end - begin) - 1;
    } else if (c == 'N' || (static_cast<unsigned char>(c) & 0x80) != 0) {
      fail("an escape in a text is not supported");
    } else if (const size_t found = names.find(c); found != std::string_view::npos) {
      text += meanings[found];
    } else if (c != '\n') {
      text += '\\';  // as Python keeps what is no escape
      text += c;
    }
  }

  std::string source_;
  size_t at_ = 0;
  bool strips_next_ = false, at_line_begin_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (tokenizer::valid_utf8_prefix(source) < source.size()) throw Error("the template is no UTF-8");
  return Lexer(source).run();
}

}  // namespace pptrain::jinja

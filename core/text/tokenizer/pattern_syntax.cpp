#include "core/text/tokenizer/pattern.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/class_set.h"
#include "core/text/tokenizer/unicode.h"
#include "core/text/tokenizer/unicode_differences.h"

namespace pptrain::tokenizer {

namespace {

constexpr std::string_view white_space =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr std::string_view no_white_space =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-"
    "\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";
// Two letters that Oniguruma lets one character stand for if case is ignored, as a ligature does.
constexpr std::array folded_pairs{"ff", "fi", "fl", "ss", "st"};

class Translator : private PatternReader {
 public:
  Translator(std::string_view pattern, Classes classes) : PatternReader(pattern), classes_(classes) {}

  std::string translate() {
    if (pattern_.starts_with("(?i)")) {
      at_ = 4;
      out_ = "(?i)";
      enter_caseless();
    }
    while (at_ < pattern_.size()) item();
    if (caseless_.size() != 1) refuse("a group without its end");
    return std::move(out_);
  }

 private:
  bool caseless() const { return caseless_.back(); }

  void enter_caseless() {
    caseless_.back() = true;
    std::string lower(pattern_);
    std::ranges::transform(lower, lower.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    for (const char* pair : folded_pairs) {
      if (lower.find(pair) != std::string::npos) {
        refuse(fmt::format("(?i) with the letters '{}', which stand for one character too,", pair));
      }
    }
  }

  void item() {
    const char c = peek();
    if (c == '\\') return escape(false);
    if (c == '[') return character_class();
    if (c == '(') return group();
    if (c == '{') return interval();
    if (c == ')') {
      if (caseless_.size() == 1) refuse("')' without its '('");
      caseless_.pop_back();
    }
    if (c == ']' || c == '}') out_ += '\\';
    if (c == '\0') refuse("a NUL byte");
    literal();
  }

  void take(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  void literal() {
    if (caseless() && static_cast<unsigned char>(peek()) >= 0x80)
      refuse("(?i) with a character beyond ASCII");
    take(1);
  }

  void group() {
    if (peek(1) != '?') {
      out_ += "(?:";
      ++at_;
      caseless_.push_back(caseless());
      return;
    }
    for (const std::string_view begin : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"}) {
      if (!next_is(begin)) continue;
      caseless_.push_back(caseless());
      if (begin == "(?i:") enter_caseless();
      take(begin.size());
      return;
    }
    refuse(fmt::format("'{}' is not supported", pattern_.substr(at_, 4)));
  }

  // {n}, {n,} and {n,m}, which both read alike unless more follows.
  void interval() {
    size_t end = at_ + 1;
    std::array<uint64_t, 2> bounds{0, 0};
    std::array<size_t, 2> digits{0, 0};
    size_t bound = 0;
    for (; end < pattern_.size() && pattern_[end] != '}'; ++end) {
      if (pattern_[end] == ',' && bound == 0) {
        bound = 1;
      } else if (is_ascii_digit(pattern_[end]) && digits[bound] < 5) {
        bounds[bound] = bounds[bound] * 10 + static_cast<uint64_t>(pattern_[end] - '0');
        ++digits[bound];
      } else {
        refuse("'{' that begins no {n}, {n,} or {n,m}");
      }
    }
    const char after = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (end >= pattern_.size() || digits[0] == 0 || (digits[1] > 0 && bounds[1] < bounds[0])) {
      refuse("'{' that begins no {n}, {n,} or {n,m}");
    }
    if (after == '+' || (after == '?' && bound == 0)) refuse("a repetition that is repeated");
    take(end + 1 - at_);
  }

  // Characters that PCRE2 does not know to be of this category.
  std::string newer(std::string_view category) const {
    std::string ranges;
    if (classes_ == Classes::library) return ranges;
    for (const NewerRange& range : newer_ranges) {
      if (range.kind != category[0] || (category.size() > 1 && range.subkind != category[1])) continue;
      ranges += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
    }
    return ranges;
  }

  static std::string ranges_of(std::span<const CodeRange> ranges) {
    std::string text;
    for (const CodeRange& range : ranges)
      text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
    return text;
  }

  std::string category_set(std::string_view category) const {
    if (category == "Han") return ranges_of(han_ranges);
    return fmt::format("\\p{{{}}}{}", category, newer(category));
  }

  // Oniguruma counts superscripts and fractions of Latin-1 as \w, but not within a class.
  std::string word_set(bool in_class) const {
    std::string set;
    for (const std::string_view category : {"L", "M", "Nd", "Nl", "Pc"}) set += category_set(category);
    for (const CodeRange& range : word_ranges) {
      if (in_class && range.last < 0x100) continue;
      set += ranges_of(std::span(&range, 1));
    }
    return set;
  }

  // PCRE2's own \b takes another \w.
  void word_boundary() {
    const std::string word = word_set(false);
    out_ += peek(1) == 'b' ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word)
                           : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word);
    at_ += 2;
  }

  // A set of characters by its escape, as the inside of a class; its complement outside of one.
  void set(const std::string& inside, bool complement, bool in_class) {
    if (!in_class) {
      out_ += fmt::format("[{}{}]", complement ? "^" : "", inside);
    } else if (complement) {
      refuse("the complement of a class within a class");
    } else {
      out_ += inside;
    }
    after_set_ = true;
  }

  void property(bool in_class) {
    const bool complement = peek(1) == 'P';
    const std::string_view name = property_name();
    if (!is_property(name)) {
      refuse(
          fmt::format("\\p{{{}}}: only general categories (L, Lu, N, P, ...), without Mn, Mc and C, and Han "
                      "are supported;",
                      name));
    }
    if (caseless() && name.size() == 2 && name[0] == 'L') refuse("a case of letters where case is ignored");
    set(category_set(name), complement, in_class);
    at_ += name.size() + 4;
  }

  // \s, \d, \w, \p{NAME} and their complements.
  void set_escape(bool in_class) {
    const char c = peek(1);
    if (c == 'p' || c == 'P') return property(in_class);
    const bool complement = c < 'a';
    if (c == 'd' || c == 'D') set(category_set("Nd"), complement, in_class);
    if (c == 'w' || c == 'W') set(word_set(in_class), complement, in_class);
    if (c == 's' || c == 'S') {
      if (classes_ == Classes::library) {
        out_ += pattern_.substr(at_, 2);
        after_set_ = true;
      } else {
        set(std::string(complement ? no_white_space : white_space), false, in_class);
      }
    }
    at_ += 2;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    const auto is_one_of = [c](std::string_view set) { return set.find(c) != std::string_view::npos; };
    after_set_ = false;
    if (next_is_set()) return set_escape(in_class);
    if (is_one_of("rntfae") || (!in_class && is_one_of("AzZ"))) return take(2);
    if (!in_class && is_one_of("bB")) return word_boundary();
    if (c == 'v') {
      out_ += "\\x{b}";
      at_ += 2;
    } else if (const auto found = code()) {
      const auto [value, bytes] = *found;
      if (caseless() && value >= 0x80) refuse("(?i) with a character beyond ASCII");
      out_ += fmt::format("\\x{{{:x}}}", value);
      at_ += bytes;
    } else if (c == '\0') {
      refuse("'\\' without what it escapes");
    } else if (is_ascii_alphanumeric(c)) {
      refuse(fmt::format("'\\{}' is not supported", c));
    } else if (static_cast<unsigned char>(c) < 0x80) {
      take(2);
    } else {
      ++at_;
      literal();
    }
  }

  void character_class() {
    if (has_set_operation(pattern_, at_)) {
      if (caseless()) refuse("(?i) with a class within a class, or '&&'");
      out_ += flat_class(pattern_, at_, classes_);
      return;
    }
    take(1);
    if (peek() == '^') take(1);
    if (peek() == ']') refuse("a class that begins with ']'");
    class_begin_ = out_.size();
    after_set_ = false;
    while (peek() != ']') {
      if (at_ >= pattern_.size()) refuse("a class without its end");
      const char c = peek();
      if (c == '\0') refuse("a NUL byte");
      if (c == '\\') {
        escape(true);
      } else if (c == '-') {
        hyphen();
      } else {
        after_set_ = false;
        literal();
      }
    }
    take(1);
  }

  // A range's, or a literal one before the end.
  void hyphen() {
    const bool last = peek(1) == ']', first = out_.size() == class_begin_;
    if (!last && !first && (after_set_ || next_is_set(1))) refuse("a range between what are no characters");
    out_ += last || first ? "\\-" : "-";
    ++at_;
    after_set_ = false;
  }

  Classes classes_;
  std::string out_;
  std::vector<bool> caseless_{false};  // of the groups that are open, the whole pattern first
  size_t class_begin_ = 0;             // in out_, behind the [ or [^ of the latest class
  bool after_set_ = false;             // in a class, behind \s, \p{L}, ...
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, Classes classes) {
  return Translator(pattern, classes).translate();
}

}  // namespace pptrain::tokenizer

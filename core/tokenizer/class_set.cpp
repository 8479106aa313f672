#include "core/tokenizer/class_set.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/tokenizer/unicode.h"
#include "core/tokenizer/unicode_differences.h"

namespace pptrain::tokenizer {
namespace {

constexpr uint32_t all_code_points = 0x110000;
using CharacterBits = std::bitset<all_code_points>;
using CharacterSet = std::unique_ptr<CharacterBits>;

// Mn and Mc are not here: U+1171E changed from one to the other.
constexpr std::array properties{"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Me", "N",  "Nd",
                                "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Han"};
// What a class is written with: every character is in one of them.
constexpr std::array units{"Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Nd", "Nl", "No", "Pc", "Pd", "Ps",
                           "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "C"};

// Each character's general category in Oniguruma's Unicode.
const std::vector<Category>& categories() {
  static const std::vector<Category> all = [] {
    std::vector<Category> each(all_code_points);
    for (uint32_t c = 0; c < all_code_points; ++c) each[c] = general_category(c);
    for (const NewerRange& range : newer_ranges()) {
      for (uint32_t c = range.first; c <= range.last; ++c) each[c] = {range.kind, range.subkind};
    }
    return each;
  }();
  return all;
}

bool is_of(Category category, std::string_view name) {
  return category[0] == name[0] && (name.size() == 1 || category[1] == name[1]);
}

void add_ranges(CharacterBits& set, std::span<const Range> ranges) {
  for (const Range& range : ranges) {
    for (uint32_t c = range.first; c <= range.last; ++c) set.set(c);
  }
}

void add_property(CharacterBits& set, std::string_view name) {
  if (name == "Han") return add_ranges(set, han_ranges());
  for (uint32_t c = 0; c < all_code_points; ++c) {
    if (is_of(categories()[c], name)) set.set(c);
  }
}

// \s, \d and \w as they are within a class: \w without the superscripts and fractions of Latin-1.
void add_escape(CharacterBits& set, char escape) {
  if (escape == 'd') return add_property(set, "Nd");
  if (escape == 's') {
    for (uint32_t c = 0; c < all_code_points; ++c) {
      if (is_white_space(c)) set.set(c);
    }
    return;
  }
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) add_property(set, name);
  for (const Range& range : word_ranges()) {
    if (range.last >= 0x100) add_ranges(set, std::span(&range, 1));
  }
}

class ClassReader {
 public:
  ClassReader(std::string_view pattern, size_t at) : pattern_(pattern), at_(at) {}

  // [...], from the bracket on.
  CharacterSet read_class() {
    ++at_;
    const bool complement = peek() == '^';
    if (complement) ++at_;
    if (peek() == ']') refuse("a class that begins with ']'");
    CharacterSet set = read_union();
    while (next_is("&&")) {
      at_ += 2;
      *set &= *read_union();
    }
    ++at_;  // ]
    if (complement) set->flip();
    return set;
  }
  size_t at() const { return at_; }

 private:
  [[noreturn]] void refuse(std::string_view what) const { refuse_pattern(what, at_, pattern_); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  // What stands before the class's end, or the next &&.
  CharacterSet read_union() {
    auto set = std::make_unique<CharacterBits>();
    const size_t begin = at_;
    while (peek() != ']' && !next_is("&&")) {
      if (at_ >= pattern_.size()) refuse("a class without its end");
      if (next_is("[:")) refuse("a POSIX bracket");
      if (peek() == '[') {
        *set |= *read_class();
        refuse_range_after();
      } else if (!read_set_escape(*set)) {
        read_range(*set);
      }
    }
    if (at_ == begin) refuse("'&&' with nothing on one side");
    return set;
  }

  // \s, \p{L}, ...; false where no such set stands here.
  bool read_set_escape(CharacterBits& set) {
    const char kind = peek() == '\\' ? peek(1) : '\0';
    const bool property = kind == 'p' || kind == 'P';
    if (kind == '\0' || (!property && std::string_view("sSdDwW").find(kind) == std::string_view::npos))
      return false;
    const bool complement = kind < 'a';
    auto own = std::make_unique<CharacterBits>();
    if (property) {
      add_property(*own, read_property());
    } else {
      add_escape(*own, complement ? static_cast<char>(kind + 32) : kind);
      at_ += 2;
    }
    set |= complement ? own->flip() : *own;
    refuse_range_after();
    return true;
  }

  std::string_view read_property() {
    const size_t end = pattern_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without its {NAME}");
    const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    if (!is_property(name)) refuse(fmt::format("\\p{{{}}} within such a class", name));
    at_ = end + 1;
    return name;
  }

  void refuse_range_after() const {
    if (peek() == '-' && peek(1) != ']') refuse("a range between what are no characters");
  }

  // One character, or a range of them.
  void read_range(CharacterBits& set) {
    const uint32_t first = read_character();
    uint32_t last = first;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      const bool set_escape =
          peek() == '\\' && std::string_view("sSdDwWpP").find(peek(1)) != std::string::npos;
      if (set_escape || peek() == '[' || next_is("&&")) refuse("a range between what are no characters");
      last = read_character();
      if (last < first) refuse("a range whose end is before its begin");
    }
    for (uint32_t c = first; c <= last; ++c) set.set(c);
  }

  uint32_t read_character() {
    if (at_ >= pattern_.size()) refuse("a class without its end");
    if (peek() == '\0') refuse("a NUL byte");
    if (peek() == '\\') return read_escape();
    const CodePoint c = code_point(pattern_, at_);
    at_ += c.size;
    return c.value;
  }

  uint32_t read_escape() {
    constexpr std::string_view names = "rntfaev", values = "\r\n\t\f\a\x1b\v";
    const char c = peek(1);
    if (c == 'u') return read_code(pattern_.substr(std::min(at_ + 2, pattern_.size()), 4), 6);
    if (next_is("\\x{")) {
      const size_t end = pattern_.find('}', at_);
      if (end != std::string_view::npos)
        return read_code(pattern_.substr(at_ + 3, end - at_ - 3), end + 1 - at_);
    }
    const size_t name = names.find(c);
    const bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (c == '\0' || (name == std::string_view::npos && alphanumeric))
      refuse(fmt::format("'\\{}' is not supported within such a class", c));
    ++at_;
    const CodePoint character = code_point(pattern_, at_);
    at_ += character.size;
    return name == std::string_view::npos ? character.value : static_cast<unsigned char>(values[name]);
  }

  uint32_t read_code(std::string_view digits, size_t bytes) {
    const std::optional<uint32_t> value = code_of_digits(digits);
    if (!value) refuse("a code point that is none");
    at_ += bytes;
    return *value;
  }

  std::string_view pattern_;
  size_t at_;
};

constexpr uint8_t uncounted = units.size();  // of characters that a text has not

uint8_t unit_of(Category category) {
  const auto unit = std::ranges::find_if(units, [&](const char* name) { return is_of(category, name); });
  return static_cast<uint8_t>(unit - units.begin());
}

// Which of `units` PCRE2 takes each character for.
std::vector<uint8_t> make_unit_numbers(Classes classes) {
  std::array<std::array<uint8_t, 128>, 128> of_category{};
  for (char first = 'A'; first <= 'Z'; ++first) {
    for (char second = 'a'; second <= 'z'; ++second)
      of_category[static_cast<size_t>(first)][static_cast<size_t>(second)] = unit_of({first, second});
  }
  std::vector<uint8_t> numbers(all_code_points);
  std::ranges::transform(categories(), numbers.begin(), [&](Category category) {
    return of_category[static_cast<size_t>(category[0])][static_cast<size_t>(category[1])];
  });
  // PCRE2 takes newer ones for unassigned.
  const uint8_t newer = classes == Classes::library ? uncounted : unit_of({'C', 'n'});
  for (const NewerRange& range : newer_ranges())
    std::fill(numbers.begin() + range.first, numbers.begin() + range.last + 1, newer);
  std::fill(numbers.begin() + 0xd800, numbers.begin() + 0xe000, uncounted);  // surrogates
  return numbers;
}

const std::vector<uint8_t>& unit_numbers(Classes classes) {
  static const std::vector<uint8_t> library = make_unit_numbers(Classes::library),
                                    exact = make_unit_numbers(Classes::exact);
  return classes == Classes::library ? library : exact;
}

// The inside of a class: units that are whole, and ranges of the others.
std::string write_set(const CharacterBits& set, Classes classes) {
  const std::vector<uint8_t>& numbers = unit_numbers(classes);
  std::array<bool, units.size() + 1> lacks{};
  for (uint32_t c = 0; c < all_code_points; ++c) {
    if (!set[c]) lacks[numbers[c]] = true;
  }
  lacks[uncounted] = false;
  std::string text;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!lacks[unit]) text += fmt::format("\\p{{{}}}", units[unit]);
  }
  const auto listed = [&](uint32_t c) { return set[c] && lacks[numbers[c]]; };
  for (uint32_t c = 0; c < all_code_points; ++c) {
    if (!listed(c)) continue;
    const uint32_t first = c;
    while (c + 1 < all_code_points && listed(c + 1)) ++c;
    text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, c);
  }
  return text;
}

}  // namespace

bool is_property(std::string_view name) {
  return std::ranges::find(properties, name) != properties.end();
}

bool has_set_operation(std::string_view pattern, size_t at) {
  for (++at; at < pattern.size() && pattern[at] != ']'; ++at) {
    if (pattern[at] == '[' || pattern.substr(at).starts_with("&&")) return true;
    if (pattern[at] == '\\') ++at;
  }
  return false;
}

std::string flat_class(std::string_view pattern, size_t& at, Classes classes) {
  ClassReader reader(pattern, at);
  const CharacterSet set = reader.read_class();
  if (set->none() || set->all()) refuse_pattern("a class of no character, or of all,", at, pattern);
  at = reader.at();
  const std::string inside = write_set(*set, classes), outside = write_set(set->flip(), classes);
  return inside.size() <= outside.size() ? fmt::format("[{}]", inside) : fmt::format("[^{}]", outside);
}

void refuse_pattern(std::string_view what, size_t at, std::string_view pattern) {
  throw Error(fmt::format("{} at byte {} of the pattern '{}'", what, at, pattern));
}

}  // namespace pptrain::tokenizer

#include "core/text/tokenizer/class_set.h"

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
#include "core/base/text.h"
#include "core/text/tokenizer/unicode.h"
#include "core/text/tokenizer/unicode_differences.h"

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
    for (const NewerRange& range : newer_ranges) {
      for (uint32_t c = range.first; c <= range.last; ++c) each[c] = {range.kind, range.subkind};
    }
    return each;
  }();
  return all;
}

bool is_of(Category category, std::string_view name) {
  return category[0] == name[0] && (name.size() == 1 || category[1] == name[1]);
}

void add_ranges(CharacterBits& set, std::span<const CodeRange> ranges) {
  for (const CodeRange& range : ranges) {
    for (uint32_t c = range.first; c <= range.last; ++c) set.set(c);
  }
}

void add_property(CharacterBits& set, std::string_view name) {
  if (name == "Han") return add_ranges(set, han_ranges);
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
  for (const CodeRange& range : word_ranges) {
    if (range.last >= 0x100) add_ranges(set, std::span(&range, 1));
  }
}

class ClassReader : public PatternReader {
 public:
  using PatternReader::PatternReader;

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

  // \s, \p{L}, ...; false if no such set stands here.
  bool read_set_escape(CharacterBits& set) {
    if (!next_is_set()) return false;
    const char kind = peek(1);
    const bool complement = kind < 'a';
    auto own = std::make_unique<CharacterBits>();
    if (kind == 'p' || kind == 'P') {
      const std::string_view name = property_name();
      if (!is_property(name)) refuse(fmt::format("\\p{{{}}} within such a class", name));
      add_property(*own, name);
      at_ += name.size() + 4;
    } else {
      add_escape(*own, complement ? static_cast<char>(kind + 32) : kind);
      at_ += 2;
    }
    set |= complement ? own->flip() : *own;
    refuse_range_after();
    return true;
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
      if (next_is_set() || peek() == '[' || next_is("&&")) refuse("a range between what are no characters");
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
    if (const auto found = code()) {
      at_ += found->second;
      return found->first;
    }
    const size_t name = names.find(c);
    if (c == '\0' || (name == std::string_view::npos && is_ascii_alphanumeric(c)))
      refuse(fmt::format("'\\{}' is not supported within such a class", c));
    ++at_;
    const CodePoint character = code_point(pattern_, at_);
    at_ += character.size;
    return name == std::string_view::npos ? character.value : static_cast<unsigned char>(values[name]);
  }
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
  for (const NewerRange& range : newer_ranges)
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
  if (set->none() || set->all()) PatternReader(pattern, at).refuse("a class of no character, or of all,");
  at = reader.at();
  const std::string inside = write_set(*set, classes), outside = write_set(set->flip(), classes);
  return inside.size() <= outside.size() ? fmt::format("[{}]", inside) : fmt::format("[^{}]", outside);
}

void PatternReader::refuse(std::string_view what) const {
  throw Error(fmt::format("{} at byte {} of the pattern '{}'", what, at_, pattern_));
}

bool PatternReader::next_is_set(size_t ahead) const {
  return peek(ahead) == '\\' && std::string_view("sSdDwWpP").find(peek(ahead + 1)) != std::string_view::npos;
}

std::string_view PatternReader::property_name() const {
  const size_t end = pattern_.find('}', at_);
  if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without its {NAME}");
  return pattern_.substr(at_ + 3, end - at_ - 3);
}

std::optional<std::pair<uint32_t, size_t>> PatternReader::code() const {
  const bool four = next_is("\\u");
  const size_t end = four ? at_ + 6 : pattern_.find('}', at_);
  if (!four && (!next_is("\\x{") || end == std::string_view::npos)) return std::nullopt;
  const std::string_view digits =
      four ? pattern_.substr(at_ + 2, 4) : pattern_.substr(at_ + 3, end - at_ - 3);
  const uint32_t value = digits.size() <= 6 ? to_number<uint32_t>(digits, 16).value_or(0) : 0;
  if (value == 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
    refuse("a code point that is none");
  return std::pair(value, four ? 6 : digits.size() + 4);
}

}  // namespace pptrain::tokenizer

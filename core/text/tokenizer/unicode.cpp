#include "core/text/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/text/tokenizer/unicode_differences.h"

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

// Are the next eight bytes ASCII, if there are so many?
bool eight_are_ascii(std::string_view bytes, size_t at) {
  uint64_t eight = 0;
  if (at + sizeof(eight) > bytes.size()) return false;
  std::memcpy(&eight, bytes.data() + at, sizeof(eight));
  return (eight & 0x8080808080808080) == 0;
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
    if (eight_are_ascii(bytes, at)) {
      at += 8;
      continue;
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

namespace {

constexpr uint32_t code_points = 0x110000;
constexpr uint32_t first_combining = 0x300;  // below it every character is in NFC and none combines backwards
using CodePointSet = std::bitset<code_points>;

bool contains(std::span<const CodeRange> ranges, uint32_t c) {
  const auto after = std::ranges::upper_bound(ranges, c, {}, &CodeRange::first);
  return after != ranges.begin() && c <= std::prev(after)->last;
}

utf8proc_category_t category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool between(utf8proc_category_t category, utf8proc_category_t first, utf8proc_category_t last) {
  return category >= first && category <= last;
}

const CodePointSet& newer_characters() {
  static const std::unique_ptr<const CodePointSet> set = [] {
    auto built = std::make_unique<CodePointSet>();
    for (const NewerRange& range : newer_ranges) {
      for (uint32_t c = range.first; c <= range.last; ++c) built->set(c);
    }
    built->set(0x180e);  // a space for PCRE2, not for Unicode
    return built;
  }();
  return *set;
}

struct FreeBytes {
  void operator()(utf8proc_uint8_t* bytes) const { std::free(bytes); }
};

utf8proc_option_t options_of(NormalForm form) {
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

void append_mapped(std::string& out, std::string_view text, NormalForm form) {
  if (text.empty()) return;
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes, options_of(form));
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) throw Error(std::string("tokenizer: no normal form: ") + utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, FreeBytes> owned(bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

// Characters that no normal form changes, of which there are too many to ask about each. (Hangul is composed
// by rule.)
bool is_its_own_form(uint32_t c) {
  const utf8proc_category_t kind = category(c);
  const auto within = [c](uint32_t first, uint32_t last) { return c >= first && c <= last; };
  return c < 0x80 || kind == UTF8PROC_CATEGORY_CN ||
         between(kind, UTF8PROC_CATEGORY_CS, UTF8PROC_CATEGORY_CO) || within(0x3400, 0x9fff) ||
         within(0xac00, 0xd7a3) || within(0x17000, 0x18cff) || within(0x20000, 0x2f7ff) ||
         within(0x30000, 0x3ffff);
}

// U+11A7, the code point before Hangul's trailing consonants, is none of them and combines with nothing
// (Unicode Standard, 3.12), but utf8proc 2.8 takes it for one and drops it. It is kept from utf8proc.
constexpr uint32_t before_trailing = 0x11a7;

// What ends a stretch that must be normalised as a whole: a character that is its own normal form, and that
// nothing before it moves over or combines with (Unicode Standard Annex 15, "Stable Code Points").
class StableSet {
 public:
  explicit StableSet(NormalForm form) {
    for (uint32_t c = 0; c < code_points; ++c) {
      const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
      if (property->combining_class == 0) stable_.set(c);
      if (is_its_own_form(c)) continue;
      std::string text, mapped;
      append_utf8(text, c);
      append_mapped(mapped, text, form);
      if (mapped != text) stable_.reset(c);
      mapped.clear();
      append_mapped(mapped, text, NormalForm::nfd);  // the later characters of a composition
      for (size_t at = code_point_size(mapped.front()); at < mapped.size();) {
        const CodePoint later = code_point(mapped, at);
        stable_.reset(later.value);
        at += later.size;
      }
    }
    for (uint32_t c = 0x1161; c <= 0x1175; ++c) stable_.reset(c);  // Hangul is composed by rule
    for (uint32_t c = before_trailing + 1; c <= 0x11c2; ++c) stable_.reset(c);
    if (form != NormalForm::nfc && form != NormalForm::nfkc) {
      for (uint32_t c = 0xac00; c <= 0xd7a3; ++c) stable_.reset(c);
    }
    for (const CodeRange& range : inert_ranges) {
      for (uint32_t c = range.first; c <= range.last; ++c) {
        stable_.set(c);
        inert_.set(c);
      }
    }
    stable_.set(before_trailing);
    inert_.set(before_trailing);
  }
  bool stable(uint32_t c) const { return stable_[c]; }
  bool inert(uint32_t c) const { return inert_[c]; }

 private:
  CodePointSet stable_, inert_;
};

// Made when it is first asked for.
template <NormalForm form>
const StableSet& stable_set_of() {
  static const auto set = std::make_unique<const StableSet>(form);
  return *set;
}

const StableSet& stable_set(NormalForm form) {
  using enum NormalForm;
  constexpr std::array of_form{stable_set_of<nfc>, stable_set_of<nfd>, stable_set_of<nfkc>,
                               stable_set_of<nfkd>};
  return of_form[static_cast<size_t>(form)]();
}

}  // namespace

Category general_category(uint32_t c) {
  const char* name = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
  return {name[0], name[1]};
}

bool is_white_space(uint32_t c) {
  if (c < 0x80) return c == 0x20 || (c >= 9 && c <= 0xd);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t blanks_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t last = previous_code_point(text, end);
    if (!is_white_space(code_point(text, last).value)) break;
    end = last;
  }
  return end;
}

size_t blanks_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = code_point(text, begin);
    if (!is_white_space(c.value)) break;
    begin += c.size;
  }
  return begin;
}

bool is_number(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return between(category(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO) || contains(number_ranges, c);
}

bool is_word(uint32_t c) {
  const utf8proc_category_t kind = category(c);
  if (between(kind, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_ME) || kind == UTF8PROC_CATEGORY_ND ||
      kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d) {
    return true;
  }
  if (c >= 0x100 && contains(word_ranges, c)) return true;
  return std::ranges::any_of(newer_ranges, [c](const NewerRange& range) {
    return c >= range.first && c <= range.last &&
           (range.kind == 'L' || range.kind == 'M' || (range.kind == 'N' && range.subkind == 'd'));
  });
}

bool is_mark(uint32_t c) {
  if (c < first_combining) return false;
  return (between(category(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) && !contains(no_mark_ranges, c)) ||
         contains(mark_ranges, c);
}

bool is_punctuation(uint32_t c) {
  return (between(category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
          !contains(no_punctuation_ranges, c)) ||
         contains(punctuation_ranges, c);
}

void append_lower(std::string& text, uint32_t c) {
  if (c == 0x130) {  // the only one that becomes two
    text += "i\xcc\x87";
    return;
  }
  const auto further = std::ranges::lower_bound(lower_ranges, c, {}, &Pair::first);
  append_utf8(text, further != lower_ranges.end() && further->first == c
                        ? further->second
                        : static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

bool has_newer_character(std::string_view text) {
  const CodePointSet& newer = newer_characters();
  for (size_t at = 0; at < text.size();) {
    if (eight_are_ascii(text, at)) {
      at += 8;
      continue;
    }
    if (static_cast<unsigned char>(text[at]) < 0xe0) {  // the first of them is U+0897
      ++at;
      continue;
    }
    const CodePoint c = code_point(text, at);
    if (newer[c.value]) return true;
    at += c.size;
  }
  return false;
}

bool append_normal_form(std::string& out, std::string_view text, NormalForm form) {
  const StableSet& set = stable_set(form);
  const bool composed = form == NormalForm::nfc;
  size_t copied = 0;        // text before it is in `out`
  size_t stable_begin = 0;  // first byte of the last stable character, or of the text
  bool changed = false;
  const size_t before = out.size();
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      stable_begin = at++;
      continue;
    }
    CodePoint c = code_point(text, at);
    if ((composed && c.value < first_combining) || set.stable(c.value)) {
      stable_begin = set.inert(c.value) ? at + c.size : at;
      at += c.size;
      continue;
    }
    // From the stable character before this one, which a mark may combine with, to the next.
    const size_t begin = stable_begin;
    while (at < text.size() && (c = code_point(text, at), !set.stable(c.value))) at += c.size;
    out += text.substr(copied, begin - copied);
    append_mapped(out, text.substr(begin, at - begin), form);
    copied = stable_begin = at;
    changed = true;
  }
  if (changed) out += text.substr(copied);
  if (changed && std::string_view(out).substr(before) == text) {
    out.resize(before);
    return false;
  }
  return changed;
}

}  // namespace pptrain::tokenizer

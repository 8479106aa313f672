// Regular expressions of tokenizer.json, by PCRE2's just-in-time compiler. The package's Oniguruma (its Ruby
// syntax) reads some of them differently.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/text/tokenizer/class_set.h"
#include "core/text/tokenizer/json_part.h"

namespace pptrain::tokenizer {

// The bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

// Immutable; any number of threads may search at once.
class Pattern {
 public:
  // Throws Error with the reason.
  static Pattern regex(std::string_view pattern);
  static Pattern literal(std::string_view text);

  // Calls `take` with the matches in a text, which is valid UTF-8, in order, without overlap: Oniguruma's
  // find_iter, which passes over an empty match at the end of the one before. `newer`:
  // has_newer_character(text), or of a text that this one is a part of. Throws Error if the search takes too
  // much memory or too many steps.
  void each_match(std::string_view text, bool newer, const std::function<void(TextRange)>& take) const;
  // Appends the text with `content` in the place of each match; returns false, and appends nothing, if there
  // is none, or no text.
  bool replace(std::string_view text, std::string_view content, std::string& out) const;

 private:
  struct Code;
  Pattern(std::string shown, std::shared_ptr<const Code> plain, std::shared_ptr<const Code> exact);

  std::string shown_;  // for messages
  std::shared_ptr<const Code> plain_, exact_;
};

// {"String": ...} or {"Regex": ...} of tokenizer.json.
inline Pattern read_pattern(const JsonPart& part) {
  part.only({"String", "Regex"});
  if (part.value().size() != 1) part.refuse("must have either 'String' or 'Regex'");
  try {
    if (part.find("String")) return Pattern::literal(part.text("String"));
    return Pattern::regex(part.text("Regex"));
  } catch (const Error& error) {
    part.refuse(error.what());
  }
}

// The same pattern in PCRE2's syntax (with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE). Throws Error that names
// what the two libraries read differently, or what is not supported, and its place.
std::string pcre2_pattern(std::string_view pattern, Classes classes);

}  // namespace pptrain::tokenizer

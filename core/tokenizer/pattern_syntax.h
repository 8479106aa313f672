// A regular expression of tokenizer.json for PCRE2: the package's Oniguruma (its Ruby syntax) reads some of
// it differently.
#pragma once

#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/tokenizer/json_part.h"
#include "core/tokenizer/pattern.h"

namespace pptrain::tokenizer {

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

// What characters the classes \s, \p{L}, ... have. `library`: those of PCRE2 as it is, which is quicker and
// equal for texts without has_newer_character(); `exact`: with all that PCRE2 does not know.
enum class Classes { library, exact };

// The same pattern in PCRE2's syntax (with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE). Throws Error that names
// what both do not read alike, or what is not supported, and where it stands.
std::string pcre2_pattern(std::string_view pattern, Classes classes);

}  // namespace pptrain::tokenizer

// Character classes with set operations, [a[bc]], [\w&&[^\d]], which PCRE2 10.42 lacks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace pptrain::tokenizer {

// Which characters the classes \s, \p{L}, ... have. `library`: those of PCRE2 as it is, which is quicker and
// equal for texts without has_newer_character(); `exact`: with all that PCRE2 does not know.
enum class Classes { library, exact };

// Is NAME of \p{NAME} a general category or a script that is supported (not Mn, Mc and C)?
bool is_property(std::string_view name);

// Has the class whose '[' is at `at` another class or && inside?
bool has_set_operation(std::string_view pattern, size_t at);

// The class whose '[' is at `at` as one class of PCRE2, so that long runs need no more memory than with any
// class. `at` moves behind its end. Throws Error that names what is not supported, and where it stands.
std::string flat_class(std::string_view pattern, size_t& at, Classes classes);

// WHAT at byte AT of the pattern '...'
[[noreturn]] void refuse_pattern(std::string_view what, size_t at, std::string_view pattern);

}  // namespace pptrain::tokenizer

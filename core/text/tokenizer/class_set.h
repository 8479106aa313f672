// Character classes with set operations, [a[bc]], [\w&&[^\d]], which PCRE2 10.42 lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pptrain::tokenizer {

// Which characters the classes \s, \p{L}, ... have. `library`: those of PCRE2 as it is, which is quicker and
// equal for texts without has_newer_character(); `exact`: with all that PCRE2 does not know.
enum class Classes { library, exact };

// Is NAME of \p{NAME} a general category or a script that is supported (not Mn, Mc and C)?
bool is_property(std::string_view name);

// Has the class whose '[' is at `at` another class or && inside?
bool has_set_operation(std::string_view pattern, size_t at);

// The class whose '[' is at `at` as one class of PCRE2, so that long runs need no more memory than with any
// class. `at` moves behind its end. Throws Error that names what is not supported, and its place.
std::string flat_class(std::string_view pattern, size_t& at, Classes classes);

// Looks at a pattern from a place on, which derived readers move.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern, size_t at = 0) : pattern_(pattern), at_(at) {}

  // WHAT at byte AT of the pattern '...'
  [[noreturn]] void refuse(std::string_view what) const;
  // The byte there, or behind it; 0 behind the end.
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  // Is it \s, \p{L}, ..., or its complement?
  bool next_is_set(size_t ahead = 0) const;
  // NAME of \p{NAME}, which stands there.
  std::string_view property_name() const;
  // What \uHHHH or \x{H...} stands for, and how many bytes it has; nothing if neither stands there.
  std::optional<std::pair<uint32_t, size_t>> code() const;

 protected:
  std::string_view pattern_;
  size_t at_;
};

}  // namespace pptrain::tokenizer

// The valid name that a misspelt one most likely meant. Names that others use are in aliases.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace pptrain::config {

// Insertions, deletions, replacements and swaps of neighbours that turn one into the other
// (Damerau-Levenshtein, "optimal string alignment"), in any case of letters. Only the first 64 characters
// count.
size_t edit_distance(std::string_view a, std::string_view b);

// The closest of `names` that is near, the first of equals: one letter of three differs at most, or the name
// goes on where the word ends ("warmup": "warmup_steps"). Empty if there is none.
std::string nearest(std::string_view word, std::span<const std::string> names);

// "; did you mean X?", or nothing where `guess` is empty.
std::string did_you_mean(std::string_view guess);

std::string to_lower(std::string_view text);  // ASCII

}  // namespace pptrain::config

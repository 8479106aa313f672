// The valid name that a misspelt one most likely meant.
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

// The closest of `names`, the first of equals; empty if there are none.
std::string nearest(std::string_view word, std::span<const std::string> names);

std::string to_lower(std::string_view text);  // ASCII

}  // namespace pptrain::config

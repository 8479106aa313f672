// The valid name that was most likely meant: by a misspelt one, or by what other trainers call it.
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

// "; did you mean X?", or nothing if `guess` is empty.
std::string did_you_mean(std::string_view guess);

std::string to_lower(std::string_view text);  // ASCII

// Is `word` one of `words`, between which there is a space?
bool has_word(std::string_view words, std::string_view word);

// --- What other trainers call the sections, keys and values of a job: names that no count of letters would
// find (aliases.cpp).

// The option ("optimizer.lr") that a key ("learning_rate") of that section means elsewhere; empty if none is
// known. An alias of this section ("eval.steps") comes before one of any section.
std::string alias_of_key(std::string_view section, std::string_view key);

// The section that is called `name` elsewhere; empty if none is known.
std::string alias_of_section(std::string_view name);

// The value of that option that is called `value` elsewhere ("gpu": "cuda"); empty if none is known.
std::string alias_of_value(std::string_view option, std::string_view value);

}  // namespace pptrain::config

// What other trainers call the sections, keys and values of a job: names that no count of letters would find.
#pragma once

#include <string>
#include <string_view>

namespace pptrain::config {

// The option ("optimizer.lr") that a key ("learning_rate") of that section means elsewhere; empty if none is
// known. What is said of the key in this very section ("eval.steps") comes before what is said of it in any.
std::string alias_of_key(std::string_view section, std::string_view key);

// The section that is called `name` elsewhere; empty if none is known.
std::string alias_of_section(std::string_view name);

// The value of that option that is called `value` elsewhere ("gpu": "cuda"); empty if none is known.
std::string alias_of_value(std::string_view option, std::string_view value);

}  // namespace pptrain::config

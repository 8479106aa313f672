// JSON of outside files: what another reader would take otherwise (a repeated key, text behind a NUL byte, a
// float where an integer belongs) is an error instead of a silent choice.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pptrain::io {

// Parses one JSON document nested at most `max_depth` deep. Throws Error that starts with `what` (the file,
// for a person) and says where the text is wrong, or which key is there twice.
nlohmann::json parse_strict_json(std::string_view text, const std::string& what, int max_depth = 16);

// The value, which must be written as an integer of this range: no float, no boolean. Throws Error that
// begins with `what`.
int64_t integer_from(const nlohmann::json& value, int64_t min, int64_t max, const std::string& what);

}  // namespace pptrain::io

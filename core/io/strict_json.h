// JSON of outside files: a repeated key is an error instead of a silent choice.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace pptrain::io {

// Parses one JSON document nested at most `max_depth` deep. Throws Error that starts with `what` (the file,
// for a person) and says where the text is wrong, or which key is there twice.
nlohmann::json parse_strict_json(std::string_view text, const std::string& what, int max_depth = 16);

}  // namespace pptrain::io

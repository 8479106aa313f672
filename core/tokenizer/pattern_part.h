// {"String": ...} or {"Regex": ...} of tokenizer.json.
#pragma once

#include "core/base/error.h"
#include "core/tokenizer/json_part.h"
#include "core/tokenizer/pattern.h"

namespace pptrain::tokenizer {

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

}  // namespace pptrain::tokenizer

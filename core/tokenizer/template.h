// Tokens around a text: "post_processor" of tokenizer.json, as far as it acts on one text.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tokenizer/json_part.h"

namespace pptrain::tokenizer {

struct Template {
  std::vector<int32_t> before, after;
  bool read = false;  // is there one that adds tokens?

  Template() = default;
  // TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (nothing) and Sequence. Throws Error
  // that names any other.
  explicit Template(const JsonPart& part);

 private:
  void add(const JsonPart& part);
  void add_pieces(const JsonPart& part);
};

}  // namespace pptrain::tokenizer

// What a text becomes before it is cut: "normalizer" of tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/json_part.h"

namespace pptrain::tokenizer {

class Normalizer {
 public:
  Normalizer() = default;
  // NFC, NFD, NFKC, NFKD, Nmt, Lowercase, Strip, StripAccents, Replace, Prepend and Sequence. Throws Error
  // that names any other.
  explicit Normalizer(const JsonPart& part);

  bool is_identity() const { return steps_.empty(); }
  // Do the first characters stay where they are (no Strip, Prepend, Replace, ...)?
  bool keeps_begin() const { return keeps_begin_; }
  // The text, or what it becomes, which is then in one of the buffers.
  std::string_view apply(std::string_view text, std::string (&buffers)[2]) const;
  std::string apply(std::string_view text) const;

 private:
  void add(const JsonPart& part);

  // Each appends the new text to `out`. If the text does not change, returns false and appends nothing. Valid
  // UTF-8 stays so.
  std::vector<std::function<bool(std::string_view text, std::string& out)>> steps_;
  bool keeps_begin_ = true;
};

}  // namespace pptrain::tokenizer

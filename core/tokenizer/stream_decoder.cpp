#include "core/tokenizer/stream_decoder.h"

#include <span>

#include "core/tokenizer/utf8.h"

namespace pptrain::tokenizer {

std::string StreamDecoder::put(int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string StreamDecoder::finish() {
  std::string rest = take(true);
  ids_.clear();
  out_ = 0;
  shown_.clear();
  return rest;
}

std::string StreamDecoder::take(bool all) {
  const std::string text = tokenizer_.decode(ids_, skip_special_);
  if (text.size() <= shown_.size() || (!all && text.ends_with(replacement_character))) return "";
  std::string added = text.starts_with(shown_)
                          ? text.substr(shown_.size())
                          : tokenizer_.decode(std::span(ids_).subspan(out_), skip_special_);
  // Those that waited are from now on what the next ones are decoded behind.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(out_));
  out_ = ids_.size();
  shown_ = tokenizer_.decode(ids_, skip_special_);
  return added;
}

}  // namespace pptrain::tokenizer

#include "core/tokenizer/stream_decoder.h"

#include <span>
#include <utility>

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
  // Those that waited are from now on what the next ones are decoded behind; but not where a decoder takes
  // all of them from the beginning of a text, where they do not stand.
  std::string shown = tokenizer_.decode(std::span(ids_).subspan(out_), skip_special_);
  if (shown.empty()) {
    shown = text;
  } else {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(out_));
  }
  shown_ = std::move(shown);
  out_ = ids_.size();
  return added;
}

}  // namespace pptrain::tokenizer

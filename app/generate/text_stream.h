// The text of one sequence as its tokens come, up to the first of the texts that end it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/data/text_codec.h"

namespace pptrain::app {

class TextStream {
 public:
  // Without a codec (null) there is no text, and nothing ends it.
  TextStream(const TextCodec* codec, const std::vector<std::string>& stops);

  void add(int64_t token);
  void end();  // no more tokens come

  // A stop text has come; neither it nor what follows is part of the text.
  bool stopped() const { return stopped_; }
  // Without what may still prove to be the beginning of a stop text: it only ever grows.
  const std::string& text() const { return text_; }

 private:
  void take(const std::string& bytes);

  std::unique_ptr<TextCodec::Decoder> decoder_;
  const std::vector<std::string>& stops_;
  std::string text_, held_;  // together all that was decoded
  bool stopped_ = false;
};

}  // namespace pptrain::app

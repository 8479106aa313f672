#include "app/generate/text_stream.h"

#include <algorithm>
#include <string_view>

namespace pptrain::app {

namespace {

// Bytes at the end of `text` that a stop text may begin with.
size_t may_begin_stop(std::string_view text, const std::vector<std::string>& stops) {
  size_t most = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(text.size(), stop.size() - 1); n > most; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) most = n;
    }
  }
  return most;
}

}  // namespace

TextStream::TextStream(const TextCodec* codec, const std::vector<std::string>& stops) : stops_(stops) {
  if (codec != nullptr) decoder_ = codec->decoder();
}

void TextStream::add(int64_t token) {
  if (decoder_ && !stopped_) take(decoder_->next(token));
}

void TextStream::end() {
  if (!decoder_ || stopped_) return;
  take(decoder_->rest());
  if (stopped_) return;
  text_ += held_;
  held_.clear();
}

// What is held back is shorter than any stop text that it is the beginning of, so that no stop text lies
// before it.
void TextStream::take(const std::string& bytes) {
  held_ += bytes;
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, held_.find(stop));
  stopped_ = found != std::string::npos;
  const size_t sure = stopped_ ? found : held_.size() - may_begin_stop(held_, stops_);
  text_ += held_.substr(0, sure);
  held_.erase(0, sure);
}

}  // namespace pptrain::app

#include "app/generate/sequence.h"

#include <algorithm>
#include <string_view>
#include <utility>

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

const char* to_string(Finish finish) {
  return finish == Finish::length ? "length" : "stop";
}

Sequence::Sequence(std::vector<int64_t> prompt, int64_t number, const StopRules& rules,
                   const TextCodec* codec)
    : number_(number),
      prompt_tokens_(static_cast<int64_t>(prompt.size())),
      rules_(rules),
      tokens_(std::move(prompt)),
      decoder_(codec != nullptr ? codec->decoder() : nullptr) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(rules.max_tokens));
}

std::vector<int64_t> Sequence::generated() const {
  return {tokens_.begin() + prompt_tokens_, tokens_.end() - (stop_token_ ? 1 : 0)};
}

void Sequence::add(int64_t token) {
  tokens_.push_back(token);
  stop_token_ = std::ranges::find(rules_.ids, token) != rules_.ids.end();
  if (!stop_token_ && decoder_ && take(decoder_->next(token))) return;
  const bool full = static_cast<int64_t>(tokens_.size()) - prompt_tokens_ >= rules_.max_tokens;
  if (!stop_token_ && !full) return;
  finish_ = stop_token_ ? Finish::stop : Finish::length;
  if (decoder_ && !take(decoder_->rest())) text_ += std::exchange(held_, {});
}

// The held bytes are shorter than any stop text that they may begin, so no stop text lies before them.
bool Sequence::take(const std::string& bytes) {
  held_ += bytes;
  size_t found = std::string::npos;
  for (const std::string& stop : rules_.texts) found = std::min(found, held_.find(stop));
  const bool stopped = found != std::string::npos;
  const size_t sure = stopped ? found : held_.size() - may_begin_stop(held_, rules_.texts);
  text_ += held_.substr(0, sure);
  held_.erase(0, sure);
  if (stopped) finish_ = Finish::stop;
  return stopped;
}

}  // namespace pptrain::app

#include "app/generate/sequence.h"

#include <algorithm>
#include <utility>

namespace pptrain::app {

const char* to_string(Finish finish) {
  return finish == Finish::length ? "length" : "stop";
}

Sequence::Sequence(std::vector<int64_t> prompt, int64_t number, const StopRules& rules,
                   const TextCodec* codec)
    : number_(number),
      prompt_tokens_(static_cast<int64_t>(prompt.size())),
      rules_(rules),
      tokens_(std::move(prompt)),
      text_(codec, rules.texts) {
  tokens_.reserve(tokens_.size() + static_cast<size_t>(rules.max_tokens));
}

std::vector<int64_t> Sequence::generated() const {
  return {tokens_.begin() + prompt_tokens_, tokens_.end() - (stop_token_ ? 1 : 0)};
}

void Sequence::add(int64_t token) {
  tokens_.push_back(token);
  stop_token_ = std::ranges::find(rules_.ids, token) != rules_.ids.end();
  if (stop_token_) return end(Finish::stop);
  text_.add(token);
  if (text_.stopped()) return end(Finish::stop);
  if (static_cast<int64_t>(tokens_.size()) - prompt_tokens_ >= rules_.max_tokens) end(Finish::length);
}

void Sequence::end(Finish finish) {
  finish_ = finish;
  text_.end();
  if (text_.stopped()) finish_ = Finish::stop;  // by what the decoder still had
}

}  // namespace pptrain::app

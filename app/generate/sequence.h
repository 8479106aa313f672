// One prompt and its continuation, as every rank of the pipeline knows them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/data/text_codec.h"

namespace pptrain::app {

enum class Finish {
  length,  // as many tokens as were asked for
  stop,    // a stop token or a stop text
};
const char* to_string(Finish finish);

struct StopRules {
  int64_t max_tokens = 0;
  std::vector<int64_t> ids;
  std::vector<std::string> texts;
};

class Sequence {
 public:
  // `prompt` has at least one token. `number`: the prompt's, among the user's. `rules` must outlive the
  // sequence. Without a codec (null) there is no text.
  Sequence(std::vector<int64_t> prompt, int64_t number, const StopRules& rules, const TextCodec* codec);

  int64_t number() const { return number_; }
  const std::vector<int64_t>& tokens() const { return tokens_; }  // the prompt's, then those generated
  int64_t prompt_tokens() const { return prompt_tokens_; }
  std::vector<int64_t> generated() const;  // without the stop token
  // Text of the generated tokens, up to the first stop text. A possible beginning of a stop text is held
  // back, so the text only grows.
  const std::string& text() const { return text_; }
  const std::optional<Finish>& finish() const { return finish_; }

  void add(int64_t token);

  // Its place in the cache, while its wave runs.
  int64_t slot = 0;
  // The first of the prompt's tokens whose logits a reader wants (GenerateOptions); -1: the last one.
  int64_t first_logits = -1;

 private:
  // Adds bytes to the text. True: a stop text has finished the sequence; the text ends before it.
  bool take(const std::string& bytes);

  int64_t number_;
  int64_t prompt_tokens_;
  const StopRules& rules_;
  std::vector<int64_t> tokens_;
  std::unique_ptr<TextCodec::Decoder> decoder_;
  std::string text_, held_;  // together all decoded bytes
  std::optional<Finish> finish_;
  bool stop_token_ = false;  // the last of the tokens is one
};

}  // namespace pptrain::app

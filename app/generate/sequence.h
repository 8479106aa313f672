// One prompt on its way: what every rank of the pipeline knows of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/generate/text_stream.h"

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
  // `prompt` has a token at least. `number`: of the prompt among the user's. `rules` must outlive it.
  Sequence(std::vector<int64_t> prompt, int64_t number, const StopRules& rules, const TextCodec* codec);

  int64_t number() const { return number_; }
  const std::vector<int64_t>& tokens() const { return tokens_; }  // the prompt's, then those generated
  int64_t prompt_tokens() const { return prompt_tokens_; }
  std::vector<int64_t> generated() const;  // without the stop token
  const std::string& text() const { return text_.text(); }
  const std::optional<Finish>& finish() const { return finish_; }

  void add(int64_t token);

  // Its place in the cache, while its wave is under way.
  int64_t slot = 0;

 private:
  void end(Finish finish);

  int64_t number_;
  int64_t prompt_tokens_;
  const StopRules& rules_;
  std::vector<int64_t> tokens_;
  TextStream text_;
  std::optional<Finish> finish_;
  bool stop_token_ = false;  // the last of the tokens is one
};

}  // namespace pptrain::app

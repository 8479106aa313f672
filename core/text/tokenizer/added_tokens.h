// Tokens that stand in the text as they are written: "added_tokens" of tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/bpe.h"
#include "core/text/tokenizer/json_part.h"
#include "core/text/tokenizer/normalizer.h"
#include "core/text/tokenizer/pattern.h"

namespace pptrain::tokenizer {

struct AddedToken {
  std::string content;
  std::string shown;  // what it is decoded to: its normalised form if it is normalised
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
};

class TokenFinder;

class AddedTokens {
 public:
  AddedTokens() = default;
  // Ids as the package gives them: a token of the model has its own, others get the next one that is free; a
  // file that says others is refused.
  AddedTokens(const JsonPart& part, const Bpe& model, const Normalizer& normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool any_normalized() const;

  // Cuts a text at the tokens that are looked for before it is normalised (plain), or after. `text` takes
  // each part between them, never empty, and its first byte; `token` an id and its first byte. In order.
  // Special tokens that touch one of `quoted` (ascending) are text.
  using TextSink = std::function<void(std::string_view part, size_t begin)>;
  using TokenSink = std::function<void(int32_t id, size_t begin)>;
  void cut_plain(std::string_view input, const TextSink& text, const TokenSink& token,
                 std::span<const TextRange> quoted = {}) const;
  void cut_normalized(std::string_view input, const TextSink& text, const TokenSink& token) const;

 private:
  void cut(const TokenFinder* finder, std::string_view input, const TextSink& text, const TokenSink& token,
           std::span<const TextRange> quoted) const;

  std::vector<AddedToken> tokens_;
  std::shared_ptr<const TokenFinder> plain_, normalized_;
};

}  // namespace pptrain::tokenizer

#include "core/text/tokenizer/tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/tokenizer/unicode.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

// Words, blanks, numbers, accents, ligatures, emoji, bytes that are not UTF-8, and the corpus's tokens.
constexpr std::string_view sample =
    "The  cat's 1234 \t\n na\xc3\xafve e\xcc\x81 \xef\xac\x81 \xe2\x96\x81x\xe2\x96\x81 <s>hi</s> <|end|> "
    "\xf0\x9f\x98\x80"
    "\xff\xed\xa0\x80 \xe0\xb8\x81\xe0\xb8\xb3 "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

void check(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text, true);
  for (const int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size() && tokenizer.token_of(id).has_value(),
            "an id of no token");
  }
  const std::string decoded = tokenizer.decode(ids, false);
  require(tokenizer::valid_utf8_prefix(decoded) == decoded.size(), "decoded text is no UTF-8");
  tokenizer::StreamDecoder stream(tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.put(id);
  streamed += stream.finish();
  require(tokenizer::valid_utf8_prefix(streamed) == streamed.size(), "streamed text is no UTF-8");
  require(tokenizer.encode(text, true) == ids, "the same text, seen again, has other ids");
}

}  // namespace

bool tokenizer(std::string_view text) {
  std::optional<tokenizer::Tokenizer> read;
  try {
    read = tokenizer::Tokenizer::parse(text, "tokenizer.json");
  } catch (const Error&) {
    return false;
  }
  try {
    check(*read, sample);
    check(*read, text.substr(0, 200));
  } catch (const Error&) {
    // A pattern may need more steps than are allowed.
  }
  return true;
}

}  // namespace pptrain::fuzz

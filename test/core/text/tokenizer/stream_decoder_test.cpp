#include "core/text/tokenizer/tokenizer.h"

#include <string>
#include <vector>

#include "test/core/text/tokenizer/definitions.h"
#include "test/support/catch.h"

using namespace pptrain::tokenizer;

TEST_CASE("text comes as soon as its characters are whole") {
  const Tokenizer tokenizer = Tokenizer::load(definition("gpt2"));
  StreamDecoder stream(tokenizer, false);
  const std::string smile = "\xf0\x9f\xa7\xbf";  // no merges make it one token
  const std::vector<int32_t> ids = tokenizer.encode("hi " + smile, false);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(stream.put(id));
  CHECK(pieces.front() == tokenizer.decode(std::vector<int32_t>{ids.front()}, false));
  CHECK(pieces.back().ends_with(smile));
  std::string whole;
  for (const std::string& piece : pieces) whole += piece;
  CHECK(whole == "hi " + smile);
  CHECK(pieces[pieces.size() - 2].empty());
  CHECK(stream.finish().empty());
}

TEST_CASE("what is left of a character comes with the end") {
  const Tokenizer tokenizer = Tokenizer::load(definition("gpt2"));
  StreamDecoder stream(tokenizer, false);
  std::vector<int32_t> ids = tokenizer.encode("a\xf0\x9f\xa7\xbf", false);
  ids.pop_back();
  std::string text;
  for (const int32_t id : ids) text += stream.put(id);
  CHECK(text == "a");
  CHECK(stream.finish() == "\xef\xbf\xbd");
  CHECK(stream.put(ids[0]) == "a");  // a new text
}

TEST_CASE("spaces that a decoder takes from the beginning are taken there alone") {
  const Tokenizer tokenizer = Tokenizer::load(definition("llama2"));
  StreamDecoder stream(tokenizer, true);
  std::string text;
  for (const int32_t id : tokenizer.encode("the king the king", true)) text += stream.put(id);
  CHECK(text + stream.finish() == "the king the king");
}

// When a sequence ends, and how much of its text is shown by then.
#include "app/generate/sequence.h"

#include <string_view>

#include "test/support/catch.h"

using namespace pptrain;
using app::Finish;
using app::Sequence;
using app::StopRules;

namespace {

const auto codec = app::make_byte_codec();

// Each character is two tokens, with ids 1000 + high and 2000 + low.
class HalfDecoder final : public app::TextCodec::Decoder {
 public:
  std::string next(int64_t token) override {
    if (token < 2000) {
      high_ = token - 1000;
      return "";
    }
    return std::string(1, static_cast<char>(high_ * 16 + (token - 2000)));
  }
  std::string rest() override { return "?"; }

 private:
  int64_t high_ = 0;
};
class HalfCodec final : public app::TextCodec {
 public:
  std::vector<int64_t> encode(std::string_view) const override { return {}; }
  std::unique_ptr<Decoder> decoder() const override { return std::make_unique<HalfDecoder>(); }
};

// Adds bytes until the sequence finishes; returns the text shown after each.
std::vector<std::string> shown(Sequence& sequence, std::string_view bytes) {
  std::vector<std::string> texts;
  for (const char c : bytes) {
    if (sequence.finish()) break;
    sequence.add(static_cast<unsigned char>(c));
    texts.push_back(sequence.text());
  }
  return texts;
}

}  // namespace

TEST_CASE("a sequence ends after its tokens, or by a stop token, which is not shown", "[generate]") {
  const StopRules rules{.max_tokens = 3, .ids = {10}, .texts = {}};
  Sequence full({1, 2}, 0, rules, codec.get());
  CHECK(shown(full, "abcd") == std::vector<std::string>{"a", "ab", "abc"});
  CHECK(full.finish() == Finish::length);
  CHECK(full.generated() == std::vector<int64_t>{'a', 'b', 'c'});
  Sequence stopped({1}, 0, rules, codec.get());
  shown(stopped, "a\nb");
  CHECK(stopped.finish() == Finish::stop);
  CHECK(stopped.generated() == std::vector<int64_t>{'a'});
  CHECK(stopped.text() == "a");
  CHECK(stopped.tokens() == std::vector<int64_t>{1, 'a', 10});
}

TEST_CASE("a stop text is cut off, and what may be its beginning is held back", "[generate]") {
  const StopRules rules{.max_tokens = 9, .ids = {}, .texts = {"END", "Enough"}};
  Sequence sequence({1}, 0, rules, codec.get());
  CHECK(shown(sequence, "xEEN ENDy") ==
        std::vector<std::string>{"x", "x", "xE", "xE", "xEEN ", "xEEN ", "xEEN ", "xEEN "});
  CHECK(sequence.finish() == Finish::stop);
  Sequence open({1}, 0, rules, codec.get());
  shown(open, "12345678E");
  CHECK(open.finish() == Finish::length);
  CHECK(open.text() == "12345678E");  // no stop text after all
}

TEST_CASE("characters of several tokens come whole, and the decoder's rest at the end", "[generate]") {
  const StopRules rules{.max_tokens = 3, .ids = {}, .texts = {}};
  const HalfCodec halves;
  Sequence sequence({1}, 0, rules, &halves);
  sequence.add(1000 + 4);
  CHECK(sequence.text().empty());
  sequence.add(2000 + 1);
  CHECK(sequence.text() == "A");
  sequence.add(1000 + 4);
  CHECK(sequence.text() == "A?");
  Sequence ids({1}, 0, rules, nullptr);
  ids.add(5);
  CHECK(ids.text().empty());
}

TEST_CASE("the byte codec gives back any bytes", "[generate]") {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const auto decoder = codec->decoder();
  std::string back;
  for (const int64_t token : codec->encode(all)) back += decoder->next(token);
  CHECK(back == all);
  CHECK(decoder->next(256) == "\xEF\xBF\xBD");
}


#include <string>
#include <utility>
#include <vector>

#include "core/text/tokenizer/unicode.h"
#include "test/support/catch.h"

using namespace pptrain::tokenizer;

namespace {

std::string repaired(std::string_view bytes) {
  std::string text;
  append_repaired(text, bytes);
  return text;
}

std::string normalized(std::string_view text, NormalForm form) {
  std::string out;
  return append_normal_form(out, text, form) ? out : std::string(text);
}

}  // namespace

TEST_CASE("bytes that are no UTF-8 become U+FFFD, one for each maximal part") {
  const std::string mark(replacement_character);
  // The examples of the Unicode Standard, tables 3-8 to 3-11, and the first and last valid values.
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", mark + mark + mark + mark + mark + mark + mark + mark + "A"},
      {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", mark + mark + mark + mark + mark + mark + mark + mark + "A"},
      {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", mark + mark + mark + mark + mark + "A" + mark + mark + "B"},
      {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", mark + mark + mark + mark + "A"},
      {"\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80", "\xf4\x8f\xbf\xbf\xed\x9f\xbf\xee\x80\x80"},
      {std::string("12345678\0abc\xc3", 13), std::string("12345678\0abc", 12) + mark},
      {"", ""}};
  for (const auto& [bytes, text] : cases) CHECK(repaired(bytes) == text);
}

TEST_CASE("code points are written and read back") {
  for (const uint32_t c : {0x1U, 0x7fU, 0x80U, 0x7ffU, 0x800U, 0xd7ffU, 0xffffU, 0x10000U, 0x10ffffU}) {
    std::string text = "x";
    append_utf8(text, c);
    CHECK(valid_utf8_prefix(text) == text.size());
    CHECK(code_point(text, 1).value == c);
    CHECK(code_point(text, 1).size == text.size() - 1);
    CHECK(previous_code_point(text, text.size()) == 1);
  }
}

TEST_CASE("normal forms leave what has them, and change what has not") {
  CHECK(normalized("e\xcc\x81!", NormalForm::nfc) == "\xc3\xa9!");
  CHECK(normalized("\xc3\xa9!", NormalForm::nfd) == "e\xcc\x81!");
  CHECK(normalized("\xef\xac\x81", NormalForm::nfc) == "\xef\xac\x81");
  CHECK(normalized("\xef\xac\x81", NormalForm::nfkc) == "fi");
  // Marks in their order: dot below (class 220) before acute (230).
  CHECK(normalized("a\xcc\x81\xcc\xa3", NormalForm::nfd) == "a\xcc\xa3\xcc\x81");
  CHECK(normalized("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", NormalForm::nfc) == "\xea\xb0\x81");  // Hangul
  // U+11A7 is no trailing consonant: it stays, behind letters and behind their syllable.
  CHECK(normalized("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa7", NormalForm::nfc) == "\xea\xb0\x80\xe1\x86\xa7");
  CHECK(normalized("\xea\xb0\x80\xe1\x86\xa7\xcc\xa3\xcc\x81", NormalForm::nfkc) ==
        "\xea\xb0\x80\xe1\x86\xa7\xcc\xa3\xcc\x81");
  std::string out = "before";
  CHECK_FALSE(append_normal_form(out, "plain \xc3\xa9 text", NormalForm::nfc));
  CHECK(out == "before");
}

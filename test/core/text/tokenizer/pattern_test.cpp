#include "core/text/tokenizer/pattern.h"

#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::tokenizer;

namespace {

std::vector<std::string> matches(const Pattern& pattern, std::string_view text) {
  std::vector<std::string> found;
  pattern.each_match(text, false, [&](TextRange match) {
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  });
  return found;
}

std::string refusal(std::string_view pattern) {
  try {
    pcre2_pattern(pattern, Classes::exact);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a pattern finds what Oniguruma finds, empty matches too") {
  CHECK(matches(Pattern::regex("\\p{L}+"), "ab 1 \xc3\xa9") == Texts{"ab", "\xc3\xa9"});
  CHECK(matches(Pattern::regex("x*"), "axxb") == Texts{"", "xx", ""});
  CHECK(matches(Pattern::regex("^b"), "a\nb") == Texts{"b"});
  CHECK(matches(Pattern::regex("(?<=a)b"), "abb") == Texts{"b"});
  CHECK(matches(Pattern::regex("\\s"), "\xe1\xa0\x8e").size() ==
        1);  // U+180E, which the search does not know
  CHECK(matches(Pattern::literal("a.b"), "a.b axb") == Texts{"a.b"});
}

TEST_CASE("an empty pattern matches between all characters, as in the package") {
  const auto replaced = [](const Pattern& pattern, std::string_view text) {
    std::string out;
    return pattern.replace(text, "x", out) ? out : std::string(text);
  };
  for (const Pattern& pattern : {Pattern::literal(""), Pattern::regex("")}) {
    CHECK(replaced(pattern, "ab") == "xaxbx");
    CHECK(replaced(pattern, "\xc3\xa9\xe4\xb8\xad") == "x\xc3\xa9x\xe4\xb8\xadx");
    CHECK(replaced(pattern, "").empty());
  }
}

TEST_CASE("a range may begin with an escaped bracket, and a hyphen at the beginning of a class is one") {
  const std::string ascii = [] {
    std::string all;
    for (char c = ' '; c < 127; ++c) all += c;
    return all;
  }();
  const auto joined = [&](std::string_view pattern) {
    std::string all;
    for (const std::string& match : matches(Pattern::regex(pattern), ascii)) all += match;
    return all;
  };
  CHECK(joined("[!-/:-@\\[-`{-~]") == "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
  CHECK(joined("[^\\[-~]") == ascii.substr(0, ascii.find('[')));
  CHECK(joined("[\\^-b]") == "^_`ab");
  CHECK(joined("[-a\\[]") == "-[a");
  CHECK(joined("[^-!-~]") == " ");
}

TEST_CASE("classes within classes, intersections, a script and boundaries of words") {
  CHECK(matches(Pattern::regex("[b[d-e]&&[^e]]"), "abcde") == Texts{"b", "d"});
  CHECK(matches(Pattern::regex("[^(\\s|[.,])]+"), "a|b (c.d") == Texts{"a", "b", "c", "d"});
  CHECK(matches(Pattern::regex("[\\p{L}&&[^\\p{Han}]]+|\\p{Han}+"), "a\xe4\xb8\xad\xe6\x96\x87z") ==
        Texts{"a", "\xe4\xb8\xad\xe6\x96\x87", "z"});
  CHECK(matches(Pattern::regex("\\d{1,3}(?=(?:\\d{3})*\\b)"), "1234567 12a") == Texts{"1", "234", "567"});
}

TEST_CASE("what PCRE2 would read otherwise is refused, with its place") {
  CHECK(refusal("a[b[]c]") == "a class that begins with ']' at byte 4 of the pattern 'a[b[]c]'");
  CHECK_THAT(refusal("[a[b]"), test::contains_text("a class without its end at byte 5"));
  CHECK_THAT(refusal("[a&&]"), test::contains_text("'&&' with nothing on one side at byte 4"));
  CHECK_THAT(refusal("[a&&[^a]]"), test::contains_text("a class of no character"));
  CHECK_THAT(refusal("[[:alpha:]]"), test::contains_text("a POSIX bracket at byte 1"));
  CHECK_THAT(refusal("[a-[b]]"), test::contains_text("a range between what are no characters"));
  CHECK_THAT(refusal("[[a]-c]"), test::contains_text("a range between what are no characters"));
  CHECK_THAT(refusal("[c-a[b]]"), test::contains_text("a range whose end is before its begin"));
  CHECK_THAT(refusal("[\\h[b]]"), test::contains_text("'\\h' is not supported within such a class"));
  CHECK_THAT(refusal("[\\p{Mn}[b]]"), test::contains_text("\\p{Mn} within such a class"));
  CHECK_THAT(refusal("(?i:[a[b]])"), test::contains_text("(?i) with a class within a class"));
  CHECK_THAT(refusal("a{2}+"), test::contains_text("a repetition that is repeated"));
  CHECK_THAT(refusal("a{2}?"), test::contains_text("a repetition that is repeated"));
  CHECK_THAT(refusal("a{,2}"), test::contains_text("'{' that begins no {n}"));
  CHECK_THAT(refusal("a{3,2}"), test::contains_text("'{' that begins no {n}"));
  CHECK_THAT(refusal("\\h"), test::contains_text("'\\h' is not supported"));
  CHECK_THAT(refusal("\\x80"), test::contains_text("'\\x' is not supported"));
  CHECK_THAT(refusal("a\\"), test::contains_text("without what it escapes"));
  CHECK_THAT(refusal("(?m:.)"), test::contains_text("'(?m:' is not supported"));
  CHECK_THAT(refusal("a(?i)b"), test::contains_text("is not supported"));
  CHECK_THAT(refusal("(?i:stra\xc3\x9f"
                     "e)"),
             test::contains_text("(?i) with the letters 'st'"));
  CHECK_THAT(refusal("(?i:\xc3\x9f)"), test::contains_text("beyond ASCII"));
  CHECK_THAT(refusal("(?i:\\p{Lu})"), test::contains_text("a case of letters"));
  CHECK_THAT(refusal("\\p{Mn}"), test::contains_text("only general categories"));
  CHECK_THAT(refusal("\\p{Hiragana}"), test::contains_text("only general categories"));
  CHECK_THAT(refusal("[\\P{L}]"), test::contains_text("the complement of a class within a class"));
  CHECK_THAT(refusal("[\\s-a]"), test::contains_text("a range between what are no characters"));
  CHECK_THAT(refusal("[]a]"), test::contains_text("a class that begins with ']'"));
  CHECK_THAT(refusal("[a"), test::contains_text("a class without its end"));
  CHECK_THAT(refusal("(a"), test::contains_text("a group without its end"));
  CHECK_THAT(refusal("a)"), test::contains_text("')' without its '('"));
  CHECK_THAT(refusal("\\x{d800}"), test::contains_text("a code point that is none"));
  CHECK_THROWS_WITH(Pattern::regex("a**"), test::contains_text("PCRE2 cannot compile"));
}

TEST_CASE("a pattern that takes too many steps is an error, not a hang") {
  const Pattern pattern = Pattern::regex("(a+)+$");
  const std::string text = std::string(200, 'a') + 'b';
  CHECK_THROWS_WITH(matches(pattern, text), test::contains_text("cannot be searched for"));
}

TEST_CASE("long runs are found whole") {
  const Pattern pattern = Pattern::regex("\\s+(?!\\S)|\\s+|\\p{L}+");
  const std::string blanks(20'000'000, ' '), letters(20'000'000, 'a');
  CHECK(matches(pattern, blanks + "x").front().size() == blanks.size() - 1);
  CHECK(matches(pattern, letters).front().size() == letters.size());
  const Pattern set = Pattern::regex("[\\p{L}&&[^\\p{Han}]]*[\\p{Ll}&&[^b]]+");
  CHECK(matches(set, letters).front().size() == letters.size());
}

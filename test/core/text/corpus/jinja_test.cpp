#include "core/text/corpus/jinja/template.h"

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::jinja;
using pptrain::test::contains_text;

namespace {

Map variables() {
  Map message;
  message.set("role", "user");
  message.set("content", Value("  Été <b>\n", 7));
  Map all;
  all.set("messages", List{Value(message), Value(message)});
  all.set("n", int64_t{5});
  all.set("nothing", None{});
  all.set("words", List{Value("b"), Value("a"), Value("c")});
  return all;
}

std::string rendered(const std::string& source) {
  return std::string(Template(source).render(variables()).text.bytes());
}

}  // namespace

// The expected texts come from Jinja 3.1 with trim_blocks and lstrip_blocks.
TEST_CASE("templates write what Jinja writes") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      // white space around tags
      {"a\n{% if n %}\n  b\n{% endif %}\nc\n", "a\n  b\nc"},
      {"a  {%- if n -%}  b  {%- endif -%}  c", "abc"},
      {"  {% if n %}x{% endif %}\n  {{ n }}\n", "x  5"},
      {"x {# c #}\ny{#- c -#}  z", "x yz"},
      {"a\n   {%+ if n %}b{% endif %}", "a\n   b"},
      // operators and their order
      {"{{ 1 + 2 * 3 - 4 // 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 - -1 }}", "6 -4 2 3.5 3"},
      {"{{ 'a' ~ 1 ~ none ~ true }} {{ 'ab' * 2 }} {{ \"x\" 'y' }}", "a1NoneTrue abab xy"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ not n == 5 }} {{ 'é' in 'été' }} {{ 'z' not in words }}",
       "True False False True True"},
      {"{{ n and 'yes' or 'no' }} {{ nothing or 'other' }} {{ 'a' if n > 9 else 'b' }}|{{ 'a' if n > 9 }}|",
       "yes other b||"},
      {"{{ words[1:] | join(',') }} {{ words[::-1] | join }} {{ 'été'[1:] }} {{ 'été'[-1] }} {{ words[:9] | "
       "length }}",
       "a,c cab té é 3"},
      {"{{ {'a': [1, 'x\"']}.a | tojson }} {{ (1, 2)[1] }} {{ words[7] is defined }}",
       "[1, \"x\\\"\"] 2 False"},
      // statements
      {"{% for w in words if w != 'a' %}{{ loop.index }}{{ w }}{{ '' if loop.last else ',' }}{% endfor %}",
       "1b,2c"},
      {"{% for w in [] %}x{% else %}none{% endfor %}{% for w in words %}{% if w == 'a' %}{% break %}{% endif "
       "%}{{ w }}"
       "{% endfor %}",
       "noneb"},
      {"{% for a, b in {'k': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "k1"},
      {"{% set x = 1 %}{% for w in words %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
      {"{% set ns = namespace(x=1) %}{% for w in words %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }}",
       "4"},
      {"{% set t %}<{{ n }}>{% endset %}{{ t | length }}{{ t }}", "3<5>"},
      {"{% macro m(a, b='d') %}{{ a }}{{ b }};{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}", "1d;12;"},
      // filters, tests, methods
      {"{{ messages[0].content | trim }}|{{ messages[0]['content'].strip('\\n ') }}|{{ ' x '.rstrip() }}|",
       "Été <b>|Été <b>| x|"},
      {"{{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ 'a b'.split() | last }} {{ 'abc'.startswith(('x', 'a')) }}",
       "c b True"},
      {"{{ messages | map(attribute='role') | join('-') }} {{ words | select('equalto', 'a') | list | length "
       "}}",
       "user-user 1"},
      {"{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ x | default('d') }} {{ "
       "'aXa'.replace('a', 'b', 1) }}",
       "2 d bXa"},
      {"{{ x is defined }} {{ nothing is none }} {{ n is divisibleby 5 }} {{ words is string }} {{ n is not "
       "odd }}",
       "False True True False False"},
      {"{% generation %}a{% endgeneration %}", "a"},
  };
  for (const auto& [source, expected] : cases) {
    INFO(source);
    CHECK(rendered(source) == expected);
  }
}

TEST_CASE("a text keeps the origin of each byte, and generation blocks are told") {
  const Rendered out =
      Template("<{% generation %}{{ messages[0].content.strip() }}{% endgeneration %}>").render(variables());
  REQUIRE(out.text.bytes() == "<Été <b>>");
  for (size_t i = 0; i < out.text.size(); ++i)
    CHECK(out.text.origin(i) == (i == 0 || i + 1 == out.text.size() ? from_template : 7));
  REQUIRE(out.generations.size() == 1);
  CHECK(out.generations[0].begin == 1);
  CHECK(out.generations[0].end == out.text.size() - 1);
}

TEST_CASE("what a template raises, or what is not supported, is an error with its line") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\n{{ raise_exception('no tools') }}", "line 2: no tools"},
      {"a\n\n{{ n | sort }}", "line 3: the filter 'sort' is not supported"},
      {"{{ n is lower }}", "the test 'lower' is not supported"},
      {"{% include 'x' %}", "the tag 'include' is not supported"},
      {"{% if n %}", "{% endif %} is missing"},
      {"{% endif %}", "'endif' ends nothing"},
      {"{{ missing.a }}", "'missing', which is undefined has no 'a'"},
      {"{{ words }}", "a list cannot be written as a text"},
      {"{{ strftime_now('%d') }}", "'strftime_now', which is undefined"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ 'a' + 1 }}", "a text + a number is not possible"},
      {"{{ range(1000000000) }}", "the range is too long"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself too often"},
      {"{{ 'é'.upper() }}", "ASCII"},
      {"{{ n", "a tag has no end"},
      {"{{ " + std::string(1000, '(') + "n" + std::string(1000, ')') + " }}", "nested too deeply"},
  };
  for (const auto& [source, words] : cases) {
    INFO(source);
    CHECK_THROWS_WITH(rendered(source), contains_text(words));
  }
}

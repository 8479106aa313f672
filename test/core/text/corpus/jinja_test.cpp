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
      // scopes
      {"{% set z = 0 %}{% for w in [] %}{% else %}{% set z = 1 %}{{ z }}{% endfor %}|{{ z }}", "1|0"},
      {"{% set z = 0 %}{% generation %}{% set z = 1 %}{{ z }}{% endgeneration %}|{{ z }}", "1|0"},
      {"{% if n %}{% macro f() %}{{ q }}{% endmacro %}{% endif %}{% set q = 3 %}{{ f() }}", "3"},
      // objects: members alone
      {"{% for w in words %}{{ loop.depth }}{{ loop.depth0 }}{{ loop.foo }}{{ loop['index'] }} {% endfor %}",
       "101 102 103 "},
      {"{% for w in [1] %}{{ loop.cycle is defined }}{{ loop.get is defined }}{{ loop is mapping }}{% endfor "
       "%}",
       "TrueFalseFalse"},
      {"{% set ns = namespace(a=1) %}{{ ns.b is defined }}{{ ns is mapping }}{{ ns['a'] }}", "FalseFalse1"},
      // texts, as Python reads and strips them
      {R"({{ '\033[1m\a\1\08\777\q\x41' }})", "\x1b[1m\a\x01" + std::string(1, '\0') + "8ǿ\\qA"},
      {"a\u00a0{%- if n %}\u00a0b{% endif -%}\u2003c", "a\u00a0bc"},
      {"a\x1c{%- if n -%}\x1f"
       "b{%- endif -%}\u0085c\u200b{#- x -#} d",
       "abc\u200bd"},
      {"a\n\u2003{% if n %}x{% endif %}{{\u00a0n }}", "a\nx5"},
      {"{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('b', 'c')) }} {{ 'abc'.startswith(()) }}",
       "True True False"},
      // numbers
      {"{{ 100000.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 100000000.0 * 100000000.0 }} {{ 1000000000000000.0 }}",
       "100000.0 0.0001 1e-05 1e+16 1000000000000000.0"},
      {"{{ -0.0 }} {{ 0.1 + 0.2 }} {{ 1234567890123456 * 100.0 }} {{ 12345678.9 }} {{ 100000.0 | tojson }}",
       "-0.0 0.30000000000000004 1.234567890123456e+17 12345678.9 100000.0"},
      {"{{ -2 is odd }} {{ -3 is odd }} {{ -n is odd }} {{ --3 }} {{ -true }} {{ not -1 is odd }}",
       "False True True 3 -1 False"},
      {"{{ {'a': 'é'} | tojson(false) }} {{ {'a': [1]} | tojson(false, 1) }} {{ [1] | tojson(indent=-1) }}",
       "{\"a\": \"é\"} {\n \"a\": [\n  1\n ]\n} [\n1\n]"},
      // kinds of lists
      {"{{ (1, 2) == [1, 2] }} {{ (1, 2) == (1, 2) }} {{ (1, 2)[:1] == [1] }} {{ () == [] }} {{ [1] in "
       "[(1,)] }}",
       "False True False False False"},
      {"{{ {'a': 1}.items() | list == [('a', 1)] }} {{ (2, 1) | list == [2, 1] }} {{ (1,) + (2,) == (1, 2) "
       "}}",
       "True True True"},
      {"{% if words | select('equalto', 'z') %}t{% endif %} {{ words | select | list == words }}", "t True"},
      {"{% set x = words | map('upper') %}{{ x | first }} {% set y = words | reverse %}{{ y | join }}{{ y | "
       "join }}",
       "B cab"},
      {"{% set x = words | map('upper') %}{{ x | first }}{{ 'A' in x }}{{ x | join }}{{ x | join }}",
       "BTrueC"},
      {"{{ {}.items() | length }} {{ not {}.keys() }} {{ words | map('upper') is sequence }} {{ range(3) | "
       "last }}",
       "0 True False 2"},
      {"{{ [[1, 2]] | map(attribute='1') | join }}", "2"},
      // methods before a mapping's values
      {"{{ {'items': 3}['items'] }} {{ {'items': 3}.items is callable }} {{ {}['get'] is defined }}",
       "3 True True"},
      {"{{ {'pop': 3}.pop is defined }} {{ 'a'.upper is defined }} {{ missing is callable }}",
       "False True True"},
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
      {"\n{% for w in words %}{% macro f() %}{% endmacro %}{% endfor %}", "line 2: a macro in a loop"},
      {"{% macro g() %}{% macro f() %}{% endmacro %}{% endmacro %}", "a macro in a loop, a macro or a block"},
      {"{% for w in words %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
       "'break' is not supported"},
      {"{% for w in words %}{% set x %}{% break %}{% endset %}{% endfor %}", "'break' is not supported"},
      {"{% for w in words %}{% set loop = 1 %}{% endfor %}", "'loop' cannot be set"},
      {"{% for w in words %}{{ loop.cycle('a', 'b') }}{% endfor %}", "the method 'cycle' of the loop"},
      {"{% for w in words %}{{ loop.foo.x }}{% endfor %}", "'foo', which is undefined has no 'x'"},
      {"{% for w in words %}{{ loop.items() }}{% endfor %}", "the method 'items' of the loop"},
      {"{% for w in words %}{{ loop | tojson }}{% endfor %}", "not the loop"},
      {"{{ namespace(a=1) | length }}", "a list is needed, not a namespace"},
      {"{{ 'a' in namespace(a=1) }}", "a text is needed, not a namespace"},
      {R"({{ '\N{DIGIT ONE}' }})", "an escape in a text is not supported"},
      {R"({{ '\é' }})", "an escape in a text is not supported"},
      {R"({{ '\x4' }})", "an escape in a text is wrong"},
      {"{{ 01 }}", "a number of this form"},
      {"{{ 999999999999999999 * 999999999999999999 }}", "a number is too large"},
      {"{{ [1] | tojson(2) }}", "tojson with ensure_ascii"},
      {"{{ [1] | tojson(ensure_ascii=true) }}", "tojson with ensure_ascii"},
      {"{{ [1] | tojson(false, 2, none) }}", "tojson with separators"},
      {"{{ 'abc'.startswith('b', 1) }}", "with one argument alone"},
      {"{{ 'abc'.endswith(suffix='c') }}", "with one argument alone"},
      {"{{ 'abc'.startswith(['a']) }}", "a text or a tuple of texts is needed, not a list"},
      {"{{ missing[1:] }}", "'missing', which is undefined has no slices"},
      {"{{ none[1:] }}", "none has no slices"},
      {"{{ messages[0][:1] }}", "a mapping has no slices"},
      {"{{ -words | length }}", "an integer is needed, not a list"},
      {"{{ (1, 2) + [3] }}", "a tuple + a list is not possible"},
      {"{{ words | select | length }}", "a generator (the filter list makes it a list) has no length"},
      {"{{ (words | reverse)[0] }}", "has no numbered elements"},
      {"{{ range(3) == [0, 1, 2] }}", "cannot be compared"},
      {"{{ words.append('d') }}", "the method 'append' of a list is not supported"},
      {"{{ n is odd is true }}", "'is' is not expected here"},
      {"{{ words in {} }}", "a list is no key of a mapping"},
      {"{{ missing | dictsort }}", "a mapping is needed"},
      {"{{ words.copy }}", "a function cannot be written as a text"},
      {"{{ n", "a tag has no end"},
      {"{{ " + std::string(1000, '(') + "n" + std::string(1000, ')') + " }}", "nested too deeply"},
  };
  for (const auto& [source, words] : cases) {
    INFO(source);
    CHECK_THROWS_WITH(rendered(source), contains_text(words));
  }
}

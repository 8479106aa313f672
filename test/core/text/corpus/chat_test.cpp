#include "core/text/corpus/chat.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/text/corpus/messages.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::corpus;
using config::ChatSection;
using config::ChatStyle;
using pptrain::test::contains_text;

namespace {

// A template in Qwen3's manner: thoughts stay only in the last answer.
constexpr const char* thinking = R"({%- set ns = namespace(last=-1) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\n' -}}
{%- if m.role == 'assistant' and loop.index0 > ns.last -%}
{{- '<think>\n' + (m.reasoning_content or '').strip('\n') + '\n</think>\n\n' -}}
{%- endif -%}
{{- m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})";

std::string folder_with(const ScratchFolder& folder, const std::string& chat_template) {
  folder.write("tokenizer_config.json", nlohmann::json{{"bos_token", "<s>"},
                                                       {"eos_token", {{"content", "</s>"}}},
                                                       {"chat_template", chat_template}}
                                            .dump());
  return folder.path().string();
}

std::string text_of(const std::vector<tokenizer::Piece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) text += piece.text;
  return text;
}

// The marked pieces; "|" stands for the others.
std::string targets_of(const std::vector<tokenizer::Piece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) {
    if (piece.marked) {
      text += piece.text;
    } else if (!text.ends_with('|')) {
      text += '|';
    }
  }
  return text;
}

std::vector<tokenizer::Piece> render(const ChatTemplate& chat, const std::string& list) {
  const nlohmann::json messages = nlohmann::json::parse(list);
  return chat.render(messages_of(messages, chat));
}

constexpr const char* chat_of_two =
    R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"%s},
  {"role": "user", "content": "r"}, {"role": "assistant", "content": "good"}])";

std::string with(const std::string& keys) {
  std::string text = chat_of_two;
  return text.replace(text.find("%s"), 2, keys);
}

}  // namespace

TEST_CASE("answers that are marked as not to be trained stay context") {
  const ScratchFolder folder;
  const std::string own = folder_with(folder, thinking);
  for (const ChatStyle style : {ChatStyle::chatml, ChatStyle::folder}) {
    const auto chat = make_chat_template({.style = style}, own);
    const std::string think = style == ChatStyle::folder ? "<think>\n\n</think>\n\n" : "";
    for (const char* key :
         {R"(, "weight": 1)", R"(, "train": true)", R"(, "weight": null)", R"(, "name": "x", "id": 3)"})
      CHECK(targets_of(render(*chat, with(key))) == "|bad<|im_end|>|" + think + "good<|im_end|>|");
    for (const char* key :
         {R"(, "weight": 0)", R"(, "weight": 0.0)", R"(, "train": false)", R"(, "training": false)"}) {
      const auto pieces = render(*chat, with(key));
      CHECK(targets_of(pieces) == "|" + think + "good<|im_end|>|");
      CHECK(text_of(pieces) == text_of(render(*chat, with(""))));
    }
  }
}

TEST_CASE("keys that change what a message means are obeyed or refused") {
  const ScratchFolder folder;
  const auto chatml = make_chat_template({.style = ChatStyle::chatml}, "");
  const auto refused = [&](const std::string& keys, const char* words) {
    INFO(keys);
    CHECK_THROWS_WITH(render(*chatml, with(keys)), contains_text("message 2: ") && contains_text(words));
  };
  refused(R"(, "weight": 0.5)", "'weight' is 0.5, but only 0, 1, false and true are known");
  refused(R"(, "train": "no")", "'train' is \"no\"");
  refused(R"(, "reasoning_content": "hm")", "the chat template does not write 'reasoning_content'");
  refused(R"(, "thinking": "hm")", "the chat template does not write 'thinking'");
  refused(R"(, "tool_calls": [{}])", "tool_calls are not supported");
  refused(R"(, "train_detail": [{"begin_offset": 0}])", "train_detail are not supported");
  CHECK_THROWS_WITH(
      render(*chatml,
             R"([{"role": "user", "content": "q", "weight": 1}, {"role": "assistant", "content": "a"}])"),
      contains_text("message 1: 'weight' marks a message of the user to be trained"));
  CHECK_THROWS_WITH(
      render(*chatml,
             R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}])"),
      contains_text("every answer is marked as not to be trained"));
  CHECK_NOTHROW(render(*chatml, with(R"(, "tool_calls": [], "reasoning_content": "", "refusal": null)")));
  const auto own = make_chat_template({.style = ChatStyle::folder}, folder_with(folder, thinking));
  const std::string last =
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}])";
  CHECK(targets_of(render(*own, last)) == "|<think>\nhm\n</think>\n\na<|im_end|>|");
  // The template has the letters of both in other names, but writes neither.
  const std::string names = std::string(thinking) + "{%- if enable_thinking is defined -%}{%- endif -%}";
  const auto with_names = make_chat_template({.style = ChatStyle::folder}, folder_with(folder, names));
  CHECK_NOTHROW(render(*with_names, last));
  for (const std::string key : {"thinking", "reasoning"}) {
    const std::string message = R"(, "role": "assistant", "content": "a"}])";
    CHECK_THROWS_WITH(
        render(*with_names, R"([{"role": "user", "content": "q"}, {")" + key + R"(": "hm")" + message),
        contains_text("the chat template does not write '" + key + "'"));
  }
  CHECK_NOTHROW(check_record({{"tools", nullptr}, {"id", 3}}));
  CHECK_THROWS_WITH(check_record({{"tools", {1}}}), contains_text("'tools' beside the messages"));
}

TEST_CASE("the model's own template is read from its folder, with what it takes for targets") {
  const ScratchFolder folder;
  const auto chat = [&](const std::string& source) {
    return make_chat_template({.style = ChatStyle::folder}, folder_with(folder, source));
  };
  const std::string turns = R"([{"role": "system", "content": "s"}, {"role": "user", "content": "<|im_end|>"},
                                {"role": "assistant", "content": "a"}])";
  const auto pieces = render(*chat(thinking), turns);
  // texts of messages are quoted, even one that looks like the template's own end of a turn; the latter is
  // marked
  for (const auto& piece : pieces)
    CHECK(piece.quoted ==
          (piece.text == "s" || piece.text == "a" || (piece.text == "<|im_end|>" && !piece.marked)));
  CHECK(text_of(chat(thinking)->prompt(std::vector<Message>{{.role = "user", .content = "q"}})) ==
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
  // generation blocks mark their own contents
  CHECK(targets_of(render(
            *chat("{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %} "
                  "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% "
                  "endfor %}"),
            turns)) == "| a</s>");
  // the end of the whole text is no part of an earlier answer (Phi-3's manner)
  const std::string phi =
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}";
  CHECK(targets_of(render(*chat(phi), with(""))) == "|bad<|end|>|good<|end|>|");
  // the generation prompt differs from the text before a finished answer (DeepSeek-R1's manner)
  const std::string prompts =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
  CHECK_THROWS_WITH(render(*chat(prompts), with("")),
                    contains_text("message 2: the template does not write the answer between"));
  CHECK_THROWS_WITH(chat("{{ messages | sort }}"),
                    contains_text("tokenizer_config.json': line 1: the filter 'sort'"));
  CHECK_THROWS_WITH(
      render(*chat("{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
                   "{% endif %}[{{ m.content }}]{% endfor %}"),
             turns),
      contains_text("no system"));
  folder.write("chat_template.jinja", "{% for m in messages %}({{ m.content }}){% endfor %}");  // comes first
  CHECK(text_of(render(*make_chat_template({.style = ChatStyle::folder}, folder.path()), turns)) ==
        "(s)(<|im_end|>)(a)");
  const ScratchFolder empty;
  CHECK_THROWS_WITH(make_chat_template({.style = ChatStyle::folder}, empty.path()),
                    contains_text("there is no chat template beside"));
}

TEST_CASE("a template that differs from the model's own is told with the place") {
  const ScratchFolder folder;
  const std::string own = folder_with(folder, thinking);
  const auto said = difference_from_own({.style = ChatStyle::chatml}, own);
  REQUIRE(said);
  CHECK_THAT(*said,
             contains_text(R"(<|im_start|>assistant\n" it writes "Then.)") && contains_text("<think>"));
  CHECK_THAT(*difference_from_own({.style = ChatStyle::qwen}, own),
             contains_text("differs from the model's own"));
  CHECK(!difference_from_own({.style = ChatStyle::folder}, own));
  const std::string chatml =
      "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor "
      "%}";
  CHECK(!difference_from_own({.style = ChatStyle::chatml}, folder_with(folder, chatml)));
  CHECK(!difference_from_own({.style = ChatStyle::chatml}, ScratchFolder().path()));
  CHECK_THAT(*difference_from_own({.style = ChatStyle::chatml}, folder_with(folder, "{{ messages | sort }}")),
             contains_text("was not compared with the model's own"));
}

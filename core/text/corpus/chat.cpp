#include "core/text/corpus/chat.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/text/corpus/chat_check.h"
#include "core/text/corpus/folder_template.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::corpus {
namespace {

using config::ChatSection;
using config::ChatStyle;
using config::SystemMessage;
using tokenizer::Piece;

// The white space of Python's str.strip(), which Jinja's trim is.
bool is_stripped(uint32_t c) {
  return tokenizer::is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_stripped(tokenizer::code_point(text, 0).value))
    text.remove_prefix(tokenizer::code_point(text, 0).size);
  while (!text.empty()) {
    const size_t last = tokenizer::previous_code_point(text, text.size());
    if (!is_stripped(tokenizer::code_point(text, last).value)) break;
    text = text.substr(0, last);
  }
  return text;
}

// Writes one turn after the other.
class Writer {
 public:
  explicit Writer(const ChatSection& chat) : chat_(chat) { add(chat.bos); }

  void system(std::string_view content) {
    add(chat_.system_prefix);
    add_content(content, /*marked=*/false);
    add(chat_.system_suffix);
  }
  // `system`: a message that goes before the user's; null: none.
  void user(std::string_view content, const std::string_view* system_content) {
    add(chat_.user_prefix);
    if (system_content != nullptr) system(*system_content);
    add_content(content, /*marked=*/false);
    add(chat_.user_suffix);
  }
  void assistant(std::string_view content, bool trained) {
    begin_answer();
    add_content(content, trained);
    const std::string& suffix = chat_.assistant_suffix;
    const size_t last = suffix.find_last_not_of(" \t\r\n");
    const size_t end = last == std::string::npos ? suffix.size() : last + 1;
    pieces_.push_back({.text = suffix.substr(0, end), .marked = trained});
    add(suffix.substr(end));
  }
  void begin_answer() { add(chat_.assistant_prefix); }
  std::vector<Piece> finish() { return std::move(pieces_); }

 private:
  void add(const std::string& text) { pieces_.push_back({.text = text}); }
  void add_content(std::string_view content, bool marked) {
    pieces_.push_back(
        {.text = std::string(chat_.trim ? stripped(content) : content), .quoted = true, .marked = marked});
  }

  const ChatSection& chat_;
  std::vector<Piece> pieces_;
};

void check_system(const ChatSection& chat, size_t index) {
  if (chat.system == SystemMessage::refuse) refuse_message(index, "the template takes no system message");
  if (chat.system == SystemMessage::user && index > 0)
    refuse_message(index, "the template takes a system message at the beginning alone");
}

// Throws Error if the template does not take the messages.
void check(const ChatSection& chat, std::span<const Message> messages) {
  check_roles(messages);
  bool user_next = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if (role == "system") {
      check_system(chat, i);
      continue;
    }
    if (chat.alternate && (role == "user") != user_next)
      refuse_message(
          i, fmt::format("it is the {}'s, but the template wants user and assistant in turns, the user first",
                         role));
    user_next = role != "user";
  }
}

// The section's texts, or those of a published template.
ChatSection texts_of(const ChatSection& section) {
  ChatSection chatml{.style = ChatStyle::chatml,
                     .system_prefix = "<|im_start|>system\n",
                     .system_suffix = "<|im_end|>\n",
                     .user_prefix = "<|im_start|>user\n",
                     .user_suffix = "<|im_end|>\n",
                     .assistant_prefix = "<|im_start|>assistant\n",
                     .assistant_suffix = "<|im_end|>\n"};
  switch (ChatStyle(section.style)) {
    case ChatStyle::chatml:
      return chatml;
    case ChatStyle::qwen:
      chatml.style = ChatStyle::qwen;
      chatml.default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
      return chatml;
    case ChatStyle::llama3:
      return {.style = ChatStyle::llama3,
              .bos = "<|begin_of_text|>",
              .system_prefix = "<|start_header_id|>system<|end_header_id|>\n\n",
              .system_suffix = "<|eot_id|>",
              .user_prefix = "<|start_header_id|>user<|end_header_id|>\n\n",
              .user_suffix = "<|eot_id|>",
              .assistant_prefix = "<|start_header_id|>assistant<|end_header_id|>\n\n",
              .assistant_suffix = "<|eot_id|>",
              .trim = true};
    case ChatStyle::mistral:
      return {.style = ChatStyle::mistral,
              .bos = "<s>",
              .system_suffix = "\n\n",
              .user_prefix = " [INST] ",
              .user_suffix = " [/INST]",
              .assistant_prefix = " ",
              .assistant_suffix = "</s>",
              .system = SystemMessage::user,
              .alternate = true};
    case ChatStyle::gemma:
      return {.style = ChatStyle::gemma,
              .bos = "<bos>",
              .user_prefix = "<start_of_turn>user\n",
              .user_suffix = "<end_of_turn>\n",
              .assistant_prefix = "<start_of_turn>model\n",
              .assistant_suffix = "<end_of_turn>\n",
              .system = SystemMessage::refuse,
              .alternate = true,
              .trim = true};
    case ChatStyle::custom:
    case ChatStyle::folder:
      break;
  }
  return section;
}

void write(const ChatSection& chat, std::span<const Message> messages, Writer& writer) {
  const bool has_system = !messages.empty() && messages.front().role == "system";
  const std::string_view opening = has_system ? messages.front().content : chat.default_system;
  const bool opens = has_system || !chat.default_system.empty();
  const bool within_user = chat.system == SystemMessage::user;
  if (opens && !within_user) writer.system(opening);
  bool first_user = true;
  for (const Message& message : messages.subspan(has_system ? 1 : 0)) {
    if (message.role == "system") {
      writer.system(message.content);
    } else if (message.role == "assistant") {
      writer.assistant(message.content, message.trained);
    } else {
      writer.user(message.content, opens && within_user && first_user ? &opening : nullptr);
      first_user = false;
    }
  }
}

std::vector<std::string> special_tokens_of(const ChatStyle style) {
  switch (style) {
    case ChatStyle::chatml:
    case ChatStyle::qwen:
      return {"<|im_start|>", "<|im_end|>"};
    case ChatStyle::llama3:
      return {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ChatStyle::mistral:
      return {"<s>", "</s>"};
    case ChatStyle::gemma:
      return {"<bos>", "<start_of_turn>", "<end_of_turn>"};
    default:
      return {};
  }
}

class SectionTemplate final : public ChatTemplate {
 public:
  explicit SectionTemplate(const ChatSection& section) : chat_(texts_of(section)) {}

  std::vector<Piece> render(std::span<const Message> messages) const override {
    check(chat_, messages);
    check_answered(messages);
    Writer writer(chat_);
    write(chat_, messages, writer);
    return writer.finish();
  }
  std::vector<Piece> prompt(std::span<const Message> messages) const override {
    check(chat_, messages);
    Writer writer(chat_);
    write(chat_, messages, writer);
    writer.begin_answer();
    return writer.finish();
  }
  bool takes_reasoning(std::string_view) const override { return false; }
  std::vector<std::string> texts() const override {
    return {chat_.bos,
            chat_.system_prefix,
            chat_.system_suffix,
            chat_.user_prefix,
            chat_.user_suffix,
            chat_.assistant_prefix,
            chat_.assistant_suffix,
            chat_.default_system,
            chat_.system.text,
            chat_.trim ? "trim" : "",
            chat_.alternate ? "alternate" : ""};
  }
  void require_tokens(const tokenizer::Tokenizer& tokenizer) const override {
    tokenizer.require_pieces();
    for (const std::string& token : special_tokens_of(chat_.style)) {
      const auto id = tokenizer.id_of(token);
      if (!id || !tokenizer.is_special(*id))
        throw UsageError(
            fmt::format("the chat template \"{}\" has {}, which is no special token of the tokenizer: is it "
                        "another model's?",
                        chat_.style.text, token));
    }
  }

 private:
  ChatSection chat_;
};

std::string text_of(const std::vector<Piece>& pieces) {
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

// The first difference of the texts, with what stands there, for a message.
std::string first_difference(const std::string& chosen, const std::string& own) {
  constexpr size_t before = 30, behind = 50;
  size_t at = static_cast<size_t>(std::ranges::mismatch(chosen, own).in1 - chosen.begin());
  while (at > 0 && (static_cast<unsigned char>(chosen[at - 1]) & 0x80) != 0) --at;  // not within a character
  const auto shown = [&](const std::string& text, size_t begin, size_t end) {
    std::string part;
    tokenizer::append_repaired(part, std::string_view(text).substr(begin, end - begin));
    return one_line(nlohmann::json(part));
  };
  return fmt::format("behind {} it writes {}, the model's own {}",
                     shown(chosen, at - std::min(at, before), at), shown(chosen, at, at + behind),
                     shown(own, at, at + behind));
}

// Compares as far as both take it.
std::optional<std::string> difference(const ChatTemplate& chosen, const ChatTemplate& own,
                                      std::span<const Message> messages) {
  try {
    const std::string one = text_of(chosen.render(messages)), other = text_of(own.render(messages));
    return one == other ? std::nullopt : std::optional(first_difference(one, other));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::shared_ptr<const ChatTemplate> make_chat_template(const ChatSection& section,
                                                       const std::filesystem::path& tokenizer) {
  if (section.style != ChatStyle::folder) return std::make_shared<SectionTemplate>(section);
  if (auto own = make_folder_template(tokenizer)) return own;
  throw UsageError(
      fmt::format("data.chat.template = \"folder\": there is no chat template beside '{}' "
                  "(chat_template.jinja, or chat_template "
                  "of tokenizer_config.json)",
                  tokenizer.string()));
}

std::optional<std::string> difference_from_own(const ChatSection& section,
                                               const std::filesystem::path& tokenizer) {
  if (section.style == ChatStyle::folder) return std::nullopt;
  constexpr std::array with_system = {Message{"system", "Be brief."}, Message{"user", "Why?"},
                                      Message{"assistant", "So."}, Message{"user", "And?"},
                                      Message{"assistant", "Then."}};
  constexpr std::array without = {Message{"user", " Why?\n"}, Message{"assistant", " So.\n"},
                                  Message{"user", "And?"}, Message{"assistant", "Then."}};
  std::shared_ptr<const ChatTemplate> own;
  try {
    own = make_folder_template(tokenizer);
  } catch (const Error& error) {
    return fmt::format("it was not compared with the model's own: {}", error.what());
  }
  if (!own) return std::nullopt;
  const SectionTemplate chosen(section);
  auto found = difference(chosen, *own, with_system);
  if (!found) found = difference(chosen, *own, without);
  if (!found) return std::nullopt;
  return fmt::format(
      "it differs from the model's own: {} (data.chat.template = \"folder\" takes the model's own)", *found);
}

}  // namespace pptrain::corpus

#include "core/corpus/chat.h"

#include <spdlog/fmt/fmt.h>

#include <string>

#include "core/base/error.h"
#include "core/tokenizer/unicode.h"

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
  void assistant(std::string_view content) {
    add(chat_.assistant_prefix);
    add_content(content, /*marked=*/true);
    const std::string& suffix = chat_.assistant_suffix;
    const size_t last = suffix.find_last_not_of(" \t\r\n");
    const size_t end = last == std::string::npos ? suffix.size() : last + 1;
    pieces_.push_back({.text = suffix.substr(0, end), .marked = true});
    add(suffix.substr(end));
  }
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

[[noreturn]] void refuse(size_t index, const std::string& what) {
  throw Error(fmt::format("message {}: {}", index + 1, what));
}

void check_system(const ChatSection& chat, size_t index) {
  if (chat.system == SystemMessage::refuse) refuse(index, "the template takes no system message");
  if (chat.system == SystemMessage::user && index > 0)
    refuse(index, "the template takes a system message at the beginning alone");
}

// Throws Error where the template does not take the messages.
void check(const ChatSection& chat, std::span<const Message> messages) {
  bool answered = false, user_next = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if (role == "system") {
      check_system(chat, i);
      continue;
    }
    if (role != "user" && role != "assistant")
      refuse(i, fmt::format("the role '{}' is not system, user or assistant", role));
    if (chat.alternate && (role == "user") != user_next)
      refuse(i,
             fmt::format("it is the {}'s, but the template wants user and assistant in turns, the user first",
                         role));
    user_next = role != "user";
    answered = answered || role == "assistant";
  }
  if (!answered) throw Error("no message is the assistant's, so that there is nothing to learn");
}

}  // namespace

ChatSection template_of(const ChatSection& section) {
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
      break;
  }
  return section;
}

std::vector<Piece> render(const ChatSection& chat, std::span<const Message> messages) {
  check(chat, messages);
  Writer writer(chat);
  const bool has_system = messages.front().role == "system";
  const std::string_view opening = has_system ? messages.front().content : chat.default_system;
  const bool opens = has_system || !chat.default_system.empty();
  const bool within_user = chat.system == SystemMessage::user;
  if (opens && !within_user) writer.system(opening);
  bool first_user = true;
  for (const Message& message : messages.subspan(has_system ? 1 : 0)) {
    if (message.role == "system") {
      writer.system(message.content);
    } else if (message.role == "assistant") {
      writer.assistant(message.content);
    } else {
      writer.user(message.content, opens && within_user && first_user ? &opening : nullptr);
      first_user = false;
    }
  }
  return writer.finish();
}

void require_tokens(const ChatSection& chat, const tokenizer::Tokenizer& tokenizer) {
  tokenizer.require_pieces();
  std::vector<std::string> tokens;
  if (chat.style == ChatStyle::chatml || chat.style == ChatStyle::qwen)
    tokens = {"<|im_start|>", "<|im_end|>"};
  if (chat.style == ChatStyle::llama3)
    tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  if (chat.style == ChatStyle::mistral) tokens = {"<s>", "</s>"};
  if (chat.style == ChatStyle::gemma) tokens = {"<bos>", "<start_of_turn>", "<end_of_turn>"};
  for (const std::string& token : tokens) {
    const auto id = tokenizer.id_of(token);
    if (!id || !tokenizer.is_special(*id))
      throw UsageError(
          fmt::format("the chat template \"{}\" has {}, which is no special token of the tokenizer: is it "
                      "another model's?",
                      chat.style.text, token));
  }
}

}  // namespace pptrain::corpus

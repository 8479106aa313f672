// Conversations as the text of a document, as chat templates make them.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/chat_section.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::corpus {

// Keys of a message that thoughts before its content are under. (DeepSeek's and Qwen's templates, gpt-oss's,
// OpenRouter's files.)
inline constexpr std::array reasoning_keys = {"reasoning_content", "thinking", "reasoning"};

struct Message {
  std::string_view role;
  std::string_view content;
  bool trained = true;  // of the assistant: its tokens are targets
  // Thoughts before the content, and the key of the message that they are under; "": none.
  std::string_view reasoning = {}, reasoning_key = {};
};

// Immutable: any number of threads may use one at once.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // The conversation without a prompt for a next answer. What messages say is quoted. Marked is what the
  // model has to generate of trained answers: content and what ends it up to white space. Throws Error with
  // the reason for a message that the template does not take, and if no answer is trained.
  virtual std::vector<tokenizer::Piece> render(std::span<const Message> messages) const = 0;
  // The conversation up to the beginning of the assistant's next answer. Nothing is marked.
  virtual std::vector<tokenizer::Piece> prompt(std::span<const Message> messages) const = 0;
  // Does it write thoughts that are under this key of a message?
  virtual bool takes_reasoning(std::string_view key) const = 0;
  // All that a conversation's tokens depend on, besides its messages.
  virtual std::vector<std::string> texts() const = 0;
  // Throws UsageError if the tokenizer lacks a special token of the published template, or the means to tell
  // messages from it.
  virtual void require_tokens(const tokenizer::Tokenizer& tokenizer) const = 0;
};

// The template of the section's texts; the published one that it names (tokenizer_config.json of
// Meta-Llama-3-8B-Instruct, Mistral-7B-Instruct-v0.2, gemma-2-9b-it and Qwen2.5-7B-Instruct; ChatML); or the
// one beside the tokenizer (tokenizer.json, or its folder). Throws UsageError if there is none, or it cannot
// be used.
std::shared_ptr<const ChatTemplate> make_chat_template(const config::ChatSection& section,
                                                       const std::filesystem::path& tokenizer);

// How the template differs from the model's own one, which lies beside the tokenizer, on conversations with
// and without a system message; or why that is not known. Nothing if there is no other one.
std::optional<std::string> difference_from_own(const config::ChatSection& section,
                                               const std::filesystem::path& tokenizer);

}  // namespace pptrain::corpus

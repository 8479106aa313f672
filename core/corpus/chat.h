// Conversations as the text of a document, as chat templates make them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/config/chat_section.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::corpus {

struct Message {
  std::string_view role;
  std::string_view content;
};

// The texts of a template: those of the section, or of the published template that it names
// (tokenizer_config.json of Meta-Llama-3-8B-Instruct, Mistral-7B-Instruct-v0.2, gemma-2-9b-it and
// Qwen2.5-7B-Instruct; ChatML). Its style stays.
config::ChatSection template_of(const config::ChatSection& section);

// The conversation without a prompt for a next answer, as a template_of() has it. Contents are quoted; the
// assistant's, and what follows them up to white space at the end, are marked. Throws Error with the reason,
// for a message that the template does not take, and where no message is the assistant's.
std::vector<tokenizer::Piece> render(const config::ChatSection& chat, std::span<const Message> messages);

// Throws UsageError where the tokenizer lacks a special token of the published template, or the means to tell
// messages from it.
void require_tokens(const config::ChatSection& chat, const tokenizer::Tokenizer& tokenizer);

}  // namespace pptrain::corpus

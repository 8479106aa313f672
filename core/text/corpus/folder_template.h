// The chat template that a model's folder has.
#pragma once

#include <filesystem>
#include <memory>

#include "core/text/corpus/chat.h"

namespace pptrain::corpus {

// The template in chat_template.jinja, or else in tokenizer_config.json, beside tokenizer.json (or its
// folder). Null if there is none. Throws UsageError with the file and the reason if it cannot be used.
//
// If the template has {% generation %} blocks, targets are what they write. Else an answer's targets lie
// between the text that prompts it (add_generation_prompt) and the text that ends it. Both texts are taken
// from two samples: an answer that does not stand between them is an Error. Neither depends on the day:
// strftime_now is not defined.
std::shared_ptr<const ChatTemplate> make_folder_template(const std::filesystem::path& tokenizer);

}  // namespace pptrain::corpus

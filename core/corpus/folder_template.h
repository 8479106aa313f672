// The chat template that a model's folder has.
#pragma once

#include <filesystem>
#include <memory>

#include "core/corpus/chat.h"

namespace pptrain::corpus {

// That of chat_template.jinja, or else of tokenizer_config.json, beside tokenizer.json (or its folder). Null
// where there is none. Throws UsageError with the file and the reason where it cannot be used.
//
// Targets are what {% generation %} blocks write, where it has them. Elsewhere those of an answer lie between
// the text that prompts it (add_generation_prompt) and the text that ends it, which are taken from two
// samples: an answer that does not stand between them is an Error. Neither depends on the day: strftime_now
// is not defined.
std::shared_ptr<const ChatTemplate> make_folder_template(const std::filesystem::path& tokenizer);

}  // namespace pptrain::corpus

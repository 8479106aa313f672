// What every chat template asks of a conversation.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/text/corpus/chat.h"

namespace pptrain::corpus {

[[noreturn]] void refuse_message(size_t index, const std::string& what);  // throws Error
// Throws Error for a role other than system, user and assistant.
void check_roles(std::span<const Message> messages);
// Throws Error unless an answer is to be trained.
void check_answered(std::span<const Message> messages);

}  // namespace pptrain::corpus

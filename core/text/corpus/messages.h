// Messages of a conversation, as records have them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "core/text/corpus/chat.h"

namespace pptrain::corpus {

// Messages of a list of {role, content}; they point into its texts. A key that changes what a message means
// is obeyed or an Error: weight, train and training say whether an answer is trained; thoughts go to a
// template that writes them; tool calls, images and the like are refused. Other keys, such as id and name,
// are ignored. Null and empty values count as none. Throws Error with the message's number and the reason.
std::vector<Message> messages_of(const nlohmann::json& list, const ChatTemplate& chat);

// Throws Error for a key in addition to the messages that changes what the conversation means: tools.
void check_record(const nlohmann::json& record);

}  // namespace pptrain::corpus

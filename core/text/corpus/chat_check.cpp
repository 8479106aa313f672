#include "core/text/corpus/chat_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::corpus {

void refuse_message(size_t index, const std::string& what) {
  throw Error(fmt::format("message {}: {}", index + 1, what));
}

void check_roles(std::span<const Message> messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      refuse_message(i, fmt::format("the role '{}' is not system, user or assistant", role));
  }
}

void check_answered(std::span<const Message> messages) {
  const auto is_answer = [](const Message& message) { return message.role == "assistant"; };
  if (std::ranges::none_of(messages, is_answer))
    throw Error("no message is the assistant's, so that there is nothing to learn");
  if (std::ranges::none_of(messages, [&](const Message& m) { return is_answer(m) && m.trained; }))
    throw Error("every answer is marked as not to be trained, so that there is nothing to learn");
}

}  // namespace pptrain::corpus

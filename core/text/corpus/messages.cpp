#include "core/text/corpus/messages.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "core/text/corpus/chat_check.h"

namespace pptrain::corpus {
namespace {

using nlohmann::json;

// Whether the assistant's answer is trained: 0 and 1, or false and true. (OpenAI's files have weight,
// axolotl's train.)
constexpr std::array train_keys = {"weight", "train", "training"};
// What a message is besides a text, or which part of it is trained.
constexpr std::array refused_keys = {"tool_calls",   "function_call",   "tool_call_id", "tools",  "functions",
                                     "train_detail", "training_detail", "images",       "image",  "audio",
                                     "audios",       "videos",          "video",        "refusal"};

// The value under a key; null if there is none, or an empty one.
const json* value_of(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return nullptr;
  const bool is_empty = found->is_string() ? found->get_ref<const std::string&>().empty()
                                           : found->is_structured() && found->empty();
  return is_empty ? nullptr : &*found;
}

std::string_view text_of(const json& object, const char* key, size_t index) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end() || !found->is_string())
    refuse_message(index, fmt::format("it has no text '{}'", key));
  return found->get_ref<const std::string&>();
}

bool is_trained(const json& object, const Message& message, size_t index) {
  bool trained = true;
  for (const char* key : train_keys) {
    const json* const value = value_of(object, key);
    if (value == nullptr) continue;
    const bool yes = value->is_boolean() ? value->get<bool>() : value->is_number() && *value == 1;
    if (!yes && !(value->is_boolean() || (value->is_number() && *value == 0)))
      refuse_message(index,
                     fmt::format("'{}' is {}, but only 0, 1, false and true are known", key, value->dump()));
    if (yes && message.role != "assistant")
      refuse_message(index,
                     fmt::format("'{}' marks a message of the {} to be trained, but only the assistant's are",
                                 key, message.role));
    trained = trained && yes;
  }
  return trained;
}

void take_reasoning(const json& object, const ChatTemplate& chat, size_t index, Message& message) {
  for (const char* key : reasoning_keys) {
    if (value_of(object, key) == nullptr) continue;
    if (!chat.takes_reasoning(key))
      refuse_message(index,
                     fmt::format("the chat template does not write '{}': remove the key, or take a template "
                                 "that does (data.chat.template = \"folder\")",
                                 key));
    if (!message.reasoning_key.empty())
      refuse_message(index, fmt::format("it has both '{}' and '{}'", message.reasoning_key, key));
    message.reasoning = text_of(object, key, index);
    message.reasoning_key = key;
  }
}

Message message_of(const json& object, const ChatTemplate& chat, size_t index) {
  Message message{.role = text_of(object, "role", index), .content = text_of(object, "content", index)};
  for (const char* key : refused_keys) {
    if (value_of(object, key) != nullptr) refuse_message(index, fmt::format("{} are not supported", key));
  }
  message.trained = is_trained(object, message, index);
  take_reasoning(object, chat, index, message);
  return message;
}

}  // namespace

std::vector<Message> messages_of(const json& list, const ChatTemplate& chat) {
  std::vector<Message> messages;
  for (const json& object : list) messages.push_back(message_of(object, chat, messages.size()));
  return messages;
}

void check_record(const json& record) {
  for (const char* key : {"tools", "functions"}) {
    if (value_of(record, key) != nullptr)
      throw Error(fmt::format("'{}' beside the messages are not supported: templates would write them", key));
  }
}

}  // namespace pptrain::corpus

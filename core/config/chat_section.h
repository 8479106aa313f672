// [data.chat]: how a conversation of messages becomes the text of a document.
#pragma once

#include <string>

#include "core/config/word.h"

namespace pptrain::config {

struct ChatSection {
  Word<ChatStyle> style =
      ChatStyle::custom;  // "template" in TOML; others than custom decide all that follows
  std::string bos = {};   // before everything
  std::string system_prefix = {}, system_suffix = {};
  std::string user_prefix = {}, user_suffix = {};
  std::string assistant_prefix = {}, assistant_suffix = {};
  std::string default_system = {};  // of a conversation without a system message; "": none
  Word<SystemMessage> system = SystemMessage::turn;
  bool alternate = false;  // refuses users and assistants that do not take turns
  bool trim = false;       // contents lose white space at both ends

  bool operator==(const ChatSection&) const = default;
};

}  // namespace pptrain::config

#include "parallel/comm/tcp/tcp_handshake.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

// Sends the input to one side, message by message. Returns whether that side
// accepted its first message.
bool speak_to(comm::Handshake side, std::string_view input) {
  bool heard = false;
  try {
    while (input.size() >= side.wanted()) {
      const std::string_view message = input.substr(0, side.wanted());
      side.take({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
      require(!side.done(), "a stranger without the key was let in");
      heard = true;
      input.remove_prefix(message.size());
    }
  } catch (const Error&) {  // says why the other side is refused
  }
  return heard;
}

}  // namespace

bool handshake(std::string_view input) {
  const comm::RunIdentity me{.key = std::string(32, 'k'), .run = "run", .rank = 1, .size = 4};
  const bool called = speak_to(comm::Handshake::called(me), input);
  const bool calling = speak_to(comm::Handshake::calling(me, 0), input);
  return called || calling;
}

}  // namespace pptrain::fuzz

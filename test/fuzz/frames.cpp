
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_inbox.h"
#include "test/fuzz/targets.h"
#include "test/support/ops.h"

namespace pptrain::fuzz {
namespace {

using comm::FrameHeader;
using comm::FrameKind;
using comm::TcpInbox;
using comm::TcpOperation;

constexpr uint64_t channels = 4;

// A data frame of a stream, as a reader of the whole stream finds it.
struct Message {
  uint64_t size = 0;
  bool whole = false;
  std::string body;
};

// Everything that was sent on a link.
struct Stream {
  std::map<uint64_t, std::vector<Message>> messages;  // by channel
  bool ended = false;                                 // the peer said goodbye
};

// `broken`: the last header was refused, and nothing behind it was read.
Stream read_stream(std::string_view bytes, bool broken) {
  Stream stream;
  FrameHeader header;
  while (bytes.size() >= sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes.remove_prefix(sizeof(header));
    if (broken && bytes.empty()) break;
    require(fault_of(header).empty() && !stream.ended, "a frame that no rank would send was taken");
    const std::string body(bytes.substr(0, header.bytes));
    const bool whole = body.size() == header.bytes;
    if (header.kind == FrameKind::data)
      stream.messages[header.channel].push_back({header.bytes, whole, body});
    stream.ended |= header.kind == FrameKind::goodbye;
    bytes.remove_prefix(body.size());
  }
  return stream;
}

// A link on which an input plays both sides: incoming bytes, and receives that
// are posted between them.
class Link {
 public:
  Link()
      : inbox_(1,
               [](TcpOperation& operation, std::string error, bool peer_ended) {
                 require(!operation.done, "a receive ended twice");
                 operation.done = true;
                 operation.error = std::move(error);
                 operation.peer_ended = peer_ended;
               },
               {.early = 4096, .most = 65536}) {}

  void receive(uint64_t channel, int64_t size) {
    auto operation = std::make_shared<TcpOperation>();
    operation->tensor = at::empty({size}, at::kByte);
    receives_[channel].push_back(operation);
    inbox_.receive(channel, operation);
  }

  void feed(std::string_view bytes) {
    while (!bytes.empty() && !broken_ && inbox_.wants_bytes()) {
      const std::span<char> room = inbox_.room();
      require(!room.empty(), "an inbox has no room");
      const size_t size = std::min(room.size(), bytes.size());
      std::memcpy(room.data(), bytes.data(), size);
      fed_ += bytes.substr(0, size);
      bytes.remove_prefix(size);
      try {
        inbox_.took(size);
      } catch (const Error&) {
        broken_ = true;
      }
    }
  }

  // Checks that every receive has the message that a reader of the whole stream
  // finds for it. Returns whether the peer was read to the end.
  bool check() const {
    const Stream stream = read_stream(fed_, broken_);
    for (const auto& [channel, receives] : receives_) {
      const auto found = stream.messages.find(channel);
      const size_t sent = found == stream.messages.end() ? 0 : found->second.size();
      for (size_t i = 0; i < receives.size(); ++i) {
        if (i < sent) {
          check_message(*receives[i], found->second[i]);
        } else {
          require(receives[i]->done == stream.ended && receives[i]->peer_ended == stream.ended,
                  "a receive without a message ended, or waits for a peer that "
                  "took leave");
        }
      }
    }
    return !broken_;
  }

 private:
  static void check_message(const TcpOperation& receive, const Message& message) {
    if (receive.tensor.nbytes() != message.size) {
      require(!receive.done || !receive.error.empty(), "a message of another size was received");
      require(receive.done || !message.whole, "a message of another size left its receive waiting");
      return;
    }
    require(receive.done == message.whole && receive.error.empty(), "a message did not end its receive");
    require(!message.whole || message.size == 0 ||
                std::memcmp(receive.tensor.const_data_ptr(), message.body.data(), message.size) == 0,
            "a message came as another");
  }

  TcpInbox inbox_;
  std::map<uint64_t, std::vector<std::shared_ptr<TcpOperation>>> receives_;
  std::string fed_;
  bool broken_ = false;
};

std::string_view take(std::string_view& input, size_t size) {
  const std::string_view piece = input.substr(0, size);
  input.remove_prefix(piece.size());
  return piece;
}

uint8_t take_byte(std::string_view& input) {
  const std::string_view piece = take(input, 1);
  return piece.empty() ? 0 : static_cast<uint8_t>(piece[0]);
}

}  // namespace

// The input's commands: a receive (r, channel, size), a header (h, kind,
// channel, size), raw bytes (any other letter, their number, the bytes).
bool frames(std::string_view input) {
  Link link;
  while (!input.empty()) {
    const uint8_t what = take_byte(input);
    const uint8_t first = take_byte(input);
    if (what == 'r') {
      link.receive(first % channels, take_byte(input));
    } else if (what == 'h') {
      const uint64_t channel = take_byte(input) % channels;
      const FrameHeader header{
          .kind = static_cast<FrameKind>(first % 4), .channel = channel, .bytes = take_byte(input)};
      link.feed({reinterpret_cast<const char*>(&header), sizeof(header)});
    } else {
      link.feed(take(input, first));
    }
  }
  return link.check();
}

}  // namespace pptrain::fuzz

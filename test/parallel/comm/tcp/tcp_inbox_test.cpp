#include "parallel/comm/tcp/tcp_inbox.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

using pptrain::test::contains_text;

// A receive of `bytes` bytes in the middle of memory that nothing else may write to.
class Guarded {
 public:
  explicit Guarded(int64_t bytes)
      : memory_(at::full({bytes + 2 * margin}, 0x5a, at::kByte)),
        operation(std::make_shared<TcpOperation>()) {
    operation->tensor = memory_.narrow(0, margin, bytes);
  }
  bool intact() const {
    const uint8_t* data = memory_.const_data_ptr<uint8_t>();
    const auto is_guard = [](uint8_t byte) { return byte == 0x5a; };
    return std::all_of(data, data + margin, is_guard) &&
           std::all_of(data + memory_.numel() - margin, data + memory_.numel(), is_guard);
  }
  std::string content() const {
    const int64_t size = memory_.numel() - 2 * margin;
    return {reinterpret_cast<const char*>(memory_.const_data_ptr<uint8_t>()) + margin,
            static_cast<size_t>(size)};
  }

 private:
  static constexpr int64_t margin = 64;
  at::Tensor memory_;

 public:
  TcpInbox::OperationPtr operation;
};

void complete(TcpOperation& operation, std::string error, bool peer_ended) {
  if (operation.done) throw std::logic_error("an operation ended twice");
  operation.done = true;
  operation.error = std::move(error);
  operation.peer_ended = peer_ended;
}

std::string frame(FrameKind kind, uint64_t channel, const std::string& body) {
  const FrameHeader header{.kind = kind, .channel = channel, .bytes = body.size()};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body;
}

std::string data(uint64_t channel, const std::string& body) {
  return frame(FrameKind::data, channel, body);
}

// Feeds `bytes`, at most `most` at a time; returns the last complete frame.
std::optional<FrameKind> feed(TcpInbox& inbox, std::string_view bytes, size_t most = SIZE_MAX) {
  std::optional<FrameKind> last;
  while (!bytes.empty()) {
    const std::span<char> room = inbox.room();
    const size_t count = std::min({room.size(), bytes.size(), most});
    std::memcpy(room.data(), bytes.data(), count);
    bytes.remove_prefix(count);
    if (const auto frame = inbox.took(count)) last = frame;
  }
  return last;
}

TEST_CASE("a message goes to the receive of its channel, whichever came first") {
  TcpInbox inbox(1, complete, {});
  const Guarded early(5), late(3), during(4);
  REQUIRE(feed(inbox, data(7, "hello"), 2) == FrameKind::data);
  inbox.receive(8, late.operation);
  inbox.receive(7, early.operation);
  REQUIRE(feed(inbox, data(8, "abc")) == FrameKind::data);
  const std::string half = data(9, "wxyz");
  feed(inbox, half.substr(0, half.size() - 2));
  inbox.receive(9, during.operation);
  REQUIRE_FALSE(during.operation->done);
  feed(inbox, half.substr(half.size() - 2));
  for (const Guarded* g : {&early, &late, &during})
    REQUIRE((g->operation->done && g->operation->error.empty()));
  REQUIRE(early.content() + late.content() + during.content() == "helloabcwxyz");
}

TEST_CASE("a message of another size ends its receive and touches no memory") {
  TcpInbox inbox(1, complete, {});
  const Guarded small(2), large(100'000), next(3);
  const bool before = GENERATE(false, true);
  const auto post = [&] {
    for (const Guarded* g : {&small, &large, &next}) inbox.receive(7, g->operation);
  };
  if (!before) post();
  feed(inbox, data(7, std::string(50'000, 'x')) + data(7, "y") + data(7, "abc"));
  if (before) post();
  REQUIRE_THAT(small.operation->error, contains_text("50000 bytes came where 2 bytes"));
  REQUIRE_THAT(large.operation->error, contains_text("1 bytes came where 100000"));
  REQUIRE(next.content() == "abc");
  for (const Guarded* g : {&small, &large, &next}) REQUIRE(g->intact());
  REQUIRE(small.content() == "\x5a\x5a");
}

TEST_CASE(
    "what comes early is bounded: the link pauses while nobody waits on it, and ends beyond all bounds") {
  TcpInbox inbox(1, complete, {.early = 1000, .most = 5000});
  feed(inbox, data(7, std::string(1000, 'x')));
  REQUIRE_FALSE(inbox.wants_bytes());
  const Guarded other(1), first(1000);
  SECTION("a receive that waits for what lies behind") {
    REQUIRE(inbox.receive(8, other.operation));
    REQUIRE(inbox.wants_bytes());
    feed(inbox, data(8, "z"));
    REQUIRE(other.operation->done);
    REQUIRE_FALSE(inbox.wants_bytes());
  }
  SECTION("the early message is taken") {
    REQUIRE(inbox.receive(7, first.operation));
    REQUIRE(inbox.wants_bytes());
  }
  SECTION("a claim on the message that is coming in") {
    const std::string more = data(9, "12345");
    feed(inbox, more.substr(0, more.size() - 1));
    const Guarded claim(5);
    REQUIRE(inbox.receive(9, claim.operation));
    REQUIRE(inbox.wants_bytes());
    feed(inbox, more.substr(more.size() - 1));
    REQUIRE(claim.content() == "12345");
    REQUIRE_FALSE(inbox.wants_bytes());
  }
  SECTION("too much for memory") {
    REQUIRE_THROWS_WITH(feed(inbox, data(7, std::string(5000, 'x'))), contains_text("no receive"));
  }
  SECTION("small messages without end") {
    REQUIRE_THROWS_AS(
        [&] {
          for (int i = 0; i < 1000; ++i) feed(inbox, data(static_cast<uint64_t>(i), ""));
        }(),
        Error);
  }
}

TEST_CASE("what comes early on all links of a process is bounded together") {
  const auto total = std::make_shared<std::atomic<size_t>>(0);
  const TcpInbox::Limits limits{.early = 10'000, .most = 6000};
  TcpInbox first(1, complete, limits, total), second(2, complete, limits, total);
  feed(first, data(7, std::string(1500, 'x')));
  REQUIRE((first.wants_bytes() && second.wants_bytes()));
  feed(second, data(7, std::string(1500, 'x')));  // more than half, counting the memory to keep them
  REQUIRE_FALSE((first.wants_bytes() || second.wants_bytes()));
  REQUIRE_THROWS_WITH(feed(second, data(7, std::string(3000, 'x'))),
                      contains_text("sent 0.0 GB") && contains_text("no receive"));
  const Guarded one(1500);
  REQUIRE(second.receive(7, one.operation));  // the other link is wanted again
  REQUIRE((first.wants_bytes() && second.wants_bytes()));
}

TEST_CASE("headers that no rank sends are refused") {
  const auto refuse = [](FrameHeader header, const std::string& reason) {
    TcpInbox inbox(1, complete, {});
    REQUIRE_THROWS_WITH(feed(inbox, {reinterpret_cast<const char*>(&header), sizeof(header)}),
                        contains_text(reason));
  };
  refuse({.magic = 1}, "no frame");
  refuse({.kind = static_cast<FrameKind>(3)}, "unknown kind 3");
  refuse({.kind = FrameKind::goodbye, .bytes = 1}, "with a body");
  refuse({.kind = FrameKind::failure, .bytes = 4097}, "report of 4097 bytes");
  refuse({.kind = FrameKind::data, .bytes = ~uint64_t{0}}, "announced a message");
  TcpInbox inbox(1, complete, {});
  const Guarded owed(1);
  inbox.receive(7, owed.operation);
  REQUIRE(feed(inbox, frame(FrameKind::goodbye, 0, "")) == FrameKind::goodbye);
  REQUIRE(owed.operation->peer_ended);
  REQUIRE_THROWS_WITH(feed(inbox, data(7, "x")), contains_text("had taken leave"));
}

TEST_CASE("a failure is a text of at most 4 KiB that does not steer the terminal") {
  TcpInbox inbox(1, complete, {});
  REQUIRE(feed(inbox, frame(FrameKind::failure, 0, "rank 1 failed:\n\x1b[2Jboom")) == FrameKind::failure);
  REQUIRE(inbox.failure() == "rank 1 failed:\n?[2Jboom");
  REQUIRE(failure_text(std::string(10'000, 'x')).size() == 4096);
}

// A stream of frames and receives with a known result.
struct Stream {
  explicit Stream(std::mt19937_64& random) {
    for (int i = 0; i < 12; ++i) {
      const uint64_t channel = random() % 3;
      std::string body(random() % 4 == 0 ? random() % 3000 : random() % 20, '\0');
      std::ranges::generate(body, [&] { return static_cast<char>(random()); });
      bytes += data(channel, body);
      messages[channel].push_back(body);
      // Usually of the size that comes.
      const int64_t wanted = static_cast<int64_t>(random() % 8 == 0 ? random() % 100 : body.size());
      receives.push_back({channel, Guarded(wanted)});
    }
    if (random() % 4 == 0) bytes += frame(FrameKind::failure, 0, "the end");
    if (random() % 2 == 0) bytes += frame(FrameKind::goodbye, 0, "");
  }
  void change(std::mt19937_64& random) {
    for (uint64_t n = 1 + random() % 4; n > 0 && !bytes.empty(); --n) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 40);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40));
          break;
        default:
          bytes.resize(at);
      }
    }
  }
  void check_delivered() {
    std::array<size_t, 3> next{};
    for (const auto& [channel, receive] : receives) {
      const std::string& message = messages[channel][next[channel]++];
      REQUIRE(receive.operation->done);
      const bool fits = static_cast<int64_t>(message.size()) == receive.operation->tensor.numel();
      REQUIRE(receive.operation->error.empty() == fits);
      if (fits) REQUIRE(receive.content() == message);
    }
  }
  std::string bytes;
  std::array<std::vector<std::string>, 3> messages;
  std::vector<std::pair<uint64_t, Guarded>> receives;
};

TEST_CASE("whatever bytes come in whatever pieces, receives get their messages or an end, and nothing else") {
  int refused = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    std::mt19937_64 random(seed);
    Stream stream(random);
    const bool changed = seed % 2 == 1;
    if (changed) stream.change(random);
    TcpInbox inbox(1, complete, {.early = 100'000, .most = 100'000});
    size_t posted = 0, fed = 0;
    try {
      while (fed < stream.bytes.size() || posted < stream.receives.size()) {
        if (posted < stream.receives.size() && (random() % 3 == 0 || fed == stream.bytes.size())) {
          auto& [channel, receive] = stream.receives[posted++];
          inbox.receive(channel, receive.operation);
        } else {
          const size_t piece = std::min<size_t>(1 + random() % 600, stream.bytes.size() - fed);
          feed(inbox, std::string_view(stream.bytes).substr(fed, piece));
          fed += piece;
        }
      }
      if (!changed) stream.check_delivered();
    } catch (const Error&) {
      ++refused;
      REQUIRE(changed);
    }
    for (const auto& [channel, receive] : stream.receives) {
      if (!receive.intact()) FAIL("a receive was written beyond, seed " << seed);
    }
  }
  REQUIRE(refused > 500);
}

}  // namespace
}  // namespace pptrain::comm

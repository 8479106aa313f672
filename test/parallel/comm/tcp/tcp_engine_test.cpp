#include "parallel/comm/tcp/tcp_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Outcome = TcpEngine::Outcome;
using pptrain::test::contains_text;

// The engine of rank 0, and what rank 1 would hold: the other end of its link.
struct Pair {
  explicit Pair(TcpInbox::Limits limits = {}) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    other = Socket(ends[1]);
    std::vector<Socket> links(2);
    links[1] = Socket(ends[0]);
    engine = std::make_unique<TcpEngine>(0, std::move(links), limits);
  }
  void say(const void* bytes, size_t count) const {
    REQUIRE(::send(other.get(), bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
  }
  std::unique_ptr<TcpEngine> peer() {
    std::vector<Socket> links(2);
    links[0] = std::move(other);
    return std::make_unique<TcpEngine>(1, std::move(links));
  }
  Socket other;
  std::unique_ptr<TcpEngine> engine;
};

std::string end_of(TcpEngine& engine, const TcpEngine::OperationPtr& operation) {
  const auto start = Clock::now();
  const Outcome outcome = engine.wait(operation, start + std::chrono::seconds(10));
  REQUIRE(Clock::now() - start < std::chrono::seconds(5));
  REQUIRE(outcome == Outcome::failed);
  try {
    engine.throw_failure();
  } catch (const PeerFailure& e) {
    return e.what();
  }
}

TEST_CASE("bytes that are no frame end all waits with a report") {
  Pair pair;
  const auto operation = pair.engine->receive(7, at::empty({10}, at::kByte), 1);
  const std::string nonsense = "GET / HTTP/1.1\r\nHost: rank0\r\n\r\n";
  pair.say(nonsense.data(), nonsense.size());
  REQUIRE(end_of(*pair.engine, operation) == "rank 1 sent bytes that are no frame (noticed by rank 0)");
}

TEST_CASE("an exception on the engine's thread ends all waits, here and on the peer, with a report") {
  Pair pair;
  const auto operation = pair.engine->receive(7, at::empty({10}, at::kByte), 1);
  // No transport lets it through: an undefined tensor cannot say its size.
  pair.engine->receive(8, at::Tensor(), 1);
  const FrameHeader header{.kind = FrameKind::data, .channel = 8, .bytes = 10};
  pair.say(&header, sizeof(header));
  REQUIRE_THAT(end_of(*pair.engine, operation), contains_text("rank 0 failed: its TCP thread met"));
  FrameHeader last{};
  pollfd readable{.fd = pair.other.get(), .events = POLLIN, .revents = 0};
  REQUIRE(poll(&readable, 1, 10'000) == 1);
  REQUIRE(recv(pair.other.get(), &last, sizeof(last), 0) == sizeof(last));
  REQUIRE(last.kind == FrameKind::failure);
}

TEST_CASE("any thread may end all waits, with a text that is bounded") {
  Pair pair;
  const auto peer = pair.peer();
  const auto here = pair.engine->receive(7, at::empty({10}, at::kByte), 1);
  const auto there = peer->receive(7, at::empty({10}, at::kByte), 0);
  std::thread([&] { pair.engine->fail("rank 5 is silent" + std::string(100'000, '!')); }).join();
  for (const std::string& text : {end_of(*pair.engine, here), end_of(*peer, there)}) {
    REQUIRE_THAT(text, contains_text("rank 5 is silent"));
    REQUIRE(text.size() == max_failure_bytes);
  }
}

TEST_CASE("a rank far ahead of the other waits for it, and all that it sent arrives") {
  constexpr int64_t size = 1 << 20;
  constexpr int count = 40;
  Pair pair({.early = 2 << 20, .most = 6 << 20});
  auto peer = pair.peer();
  std::vector<TcpEngine::OperationPtr> sends;
  for (int i = 0; i < count; ++i) sends.push_back(peer->send(7, at::full({size}, i, at::kByte), 0));
  sends.push_back(peer->send(8, at::full({5}, 99, at::kByte), 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  REQUIRE(peer->poll(sends.back()) == Outcome::timeout);  // nobody asked for that much
  for (int i = 0; i < count; ++i) {
    const at::Tensor received = at::empty({size}, at::kByte);
    const auto operation = pair.engine->receive(7, received, 1);
    REQUIRE(pair.engine->wait(operation, Clock::now() + std::chrono::seconds(10)) == Outcome::complete);
    REQUIRE(at::equal(received, at::full({size}, i, at::kByte)));
  }
  const at::Tensor last = at::empty({5}, at::kByte);
  const auto operation = pair.engine->receive(8, last, 1);
  REQUIRE(pair.engine->wait(operation, Clock::now() + std::chrono::seconds(10)) == Outcome::complete);
  REQUIRE(at::equal(last, at::full({5}, 99, at::kByte)));
  // Two that take leave do not wait for each other's destructor.
  std::thread other([&] { pair.engine.reset(); });
  peer->poll(sends.back());
  peer.reset();
  other.join();
}

TEST_CASE("a peer that dies while it is made to wait is noticed") {
  Pair pair({.early = 1000, .most = 1 << 20});
  const std::string body(2000, 'x');
  const FrameHeader header{.kind = FrameKind::data, .channel = 7, .bytes = body.size()};
  pair.say(&header, sizeof(header));
  pair.say(body.data(), body.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(pair.engine->failure().empty());
  pair.other.close();
  const at::Tensor received = at::empty({2000}, at::kByte);
  const auto start = Clock::now();
  while (Clock::now() - start < std::chrono::seconds(5)) {
    try {
      pair.engine->receive(9, at::empty({1}, at::kByte), 1);
    } catch (const PeerFailure& e) {
      REQUIRE_THAT(e.what(), contains_text("rank 1 ended its connection"));
      REQUIRE(pair.engine->failure() == e.what());
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("the peer's death was not noticed");
}

TEST_CASE("whatever bytes a link brings, waits end") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    Pair pair({.early = 1 << 16, .most = 1 << 20});
    const auto operation = pair.engine->receive(7, at::empty({10}, at::kByte), 1);
    std::string bytes;
    for (uint64_t n = random() % 4; n > 0; --n) {
      const FrameHeader header{.kind = FrameKind::data, .channel = random() % 9, .bytes = random() % 30};
      bytes += std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
               std::string(header.bytes, 'x');
    }
    for (int n = 0; n < 30; ++n) bytes += static_cast<char>(random());
    pair.say(bytes.data(), bytes.size());
    pair.other.close();
    REQUIRE(pair.engine->wait(operation, Clock::now() + std::chrono::seconds(5)) != Outcome::timeout);
  }
}

}  // namespace
}  // namespace pptrain::comm

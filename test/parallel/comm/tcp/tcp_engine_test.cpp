#include "parallel/comm/tcp/tcp_engine.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/net/socket.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

// The engine of rank 0, and rank 1's end of the link.
struct Pair {
  explicit Pair(TcpInbox::Limits limits = {}) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    other = net::Socket(ends[1]);
    engine = std::make_unique<TcpEngine>(met(0, net::Socket(ends[0])), limits);
  }
  static Met met(int rank, net::Socket link) {
    Met met{.me = {.key = "k", .run = "r", .rank = rank, .size = 2},
            .contacts = {},
            .addresses = {},
            .links = {}};
    met.links[1 - rank] = std::move(link);
    return met;
  }
  void say(const void* bytes, size_t count) const {
    REQUIRE(::send(other.get(), bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count));
  }
  std::unique_ptr<TcpEngine> peer() { return std::make_unique<TcpEngine>(met(1, std::move(other))); }
  net::Socket other;
  std::unique_ptr<TcpEngine> engine;
};

std::string end_of(TcpEngine& engine, const TcpEngine::OperationPtr& operation) {
  const auto start = Clock::now();
  try {
    engine.wait(operation, start + std::chrono::seconds(10));
  } catch (const PeerFailure& e) {
    REQUIRE(Clock::now() - start < std::chrono::seconds(5));
    return e.what();
  }
  FAIL("the engine has not failed");
  return "";
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
  // No transport accepts it: an undefined tensor has no size.
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

TEST_CASE("a rank far ahead of the other waits for it, and all that it sent arrives", "[clock]") {
  constexpr int64_t size = 1 << 20;
  constexpr int count = 40;
  Pair pair({.early = 2 << 20, .most = 6 << 20});
  auto peer = pair.peer();
  std::vector<TcpEngine::OperationPtr> sends;
  for (int i = 0; i < count; ++i) sends.push_back(peer->send(7, at::full({size}, i, at::kByte), 0));
  sends.push_back(peer->send(8, at::full({5}, 99, at::kByte), 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  REQUIRE_FALSE(peer->wait(sends.back()));  // no receives for that much yet
  for (int i = 0; i < count; ++i) {
    const at::Tensor received = at::empty({size}, at::kByte);
    const auto operation = pair.engine->receive(7, received, 1);
    REQUIRE(pair.engine->wait(operation, Clock::now() + std::chrono::seconds(10)));
    REQUIRE(at::equal(received, at::full({size}, i, at::kByte)));
  }
  const at::Tensor last = at::empty({5}, at::kByte);
  const auto operation = pair.engine->receive(8, last, 1);
  REQUIRE(pair.engine->wait(operation, Clock::now() + std::chrono::seconds(10)));
  REQUIRE(at::equal(last, at::full({5}, 99, at::kByte)));
  // Two engines that end do not wait for each other's destructor.
  std::thread other([&] { pair.engine.reset(); });
  peer->wait(sends.back());
  peer.reset();
  other.join();
}

TEST_CASE("a peer that dies while it is made to wait is noticed", "[clock]") {
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
      REQUIRE_THAT(e.what(), contains_text("rank 1 closed its connection"));
      REQUIRE(pair.engine->failure() == e.what());
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  FAIL("the peer's death was not noticed");
}

// Both ends of a connection over the loopback.
std::pair<net::Socket, net::Socket> connected() {
  int error = 0;
  const net::Socket listener = net::listen_at("127.0.0.1", 0, error);
  net::Socket caller = net::start_connecting("127.0.0.1", net::port_of(listener), error);
  pollfd call{.fd = listener.get(), .events = POLLIN, .revents = 0};
  REQUIRE(poll(&call, 1, 5000) == 1);
  net::Socket called = net::accept_now(listener, error);
  REQUIRE((caller.open() && called.open()));
  return {std::move(caller), std::move(called)};
}

// From now on no packet reaches the socket and none is answered, as if its host had gone.
void cut_off(const net::Socket& socket) {
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  REQUIRE(setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
}

constexpr std::chrono::milliseconds silence{1000};
constexpr int64_t more_than_buffers = 32 << 20;

TEST_CASE("a peer that reads nothing for longer than a silence lasts is waited for") {
  constexpr int count = 32;
  constexpr int64_t size = more_than_buffers / count;
  auto [here, there] = connected();
  auto sender = std::make_unique<TcpEngine>(Pair::met(0, std::move(here)), TcpInbox::Limits{}, silence);
  auto receiver = std::make_unique<TcpEngine>(Pair::met(1, std::move(there)),
                                              TcpInbox::Limits{.early = 1000, .most = 64 << 20}, silence);
  std::vector<TcpEngine::OperationPtr> sends;
  for (int i = 0; i < count; ++i) sends.push_back(sender->send(7, at::full({size}, i, at::kByte), 1));
  std::this_thread::sleep_for(4 * silence);
  REQUIRE(sender->failure().empty());
  REQUIRE(receiver->failure().empty());
  REQUIRE_FALSE(sender->wait(sends.back()));
  for (int i = 0; i < count; ++i) {
    const at::Tensor received = at::empty({size}, at::kByte);
    const auto operation = receiver->receive(7, received, 0);
    REQUIRE(receiver->wait(operation, Clock::now() + std::chrono::seconds(10)));
    REQUIRE(at::equal(received, at::full({size}, i, at::kByte)));
  }
  std::thread other([&] { sender.reset(); });
  receiver.reset();
  other.join();
}

// A time limit would count the time in which a computing peer reads nothing.
TEST_CASE("a link sets no time limit on bytes that the peer does not take") {
  const net::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(socket.open());
  net::make_link(socket);
  int limit = -1;
  socklen_t size = sizeof(limit);
  REQUIRE(getsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &size) == 0);
  CHECK(limit == 0);
}

TEST_CASE("a host that is gone is found while something is on its way to it") {
  const bool window_closed = GENERATE(false, true);
  CAPTURE(window_closed);
  auto [here, there] = connected();
  TcpEngine engine(Pair::met(0, std::move(here)), {}, silence);
  if (window_closed) {
    engine.send(7, at::full({more_than_buffers}, 1, at::kByte), 1);
    std::this_thread::sleep_for(silence / 2);  // until `there` is full; the test does not read it
  }
  cut_off(there);
  if (!window_closed) engine.send(7, at::full({5}, 1, at::kByte), 1);
  const auto operation = engine.receive(7, at::empty({1}, at::kByte), 1);
  const auto start = Clock::now();
  REQUIRE_THROWS_AS(engine.wait(operation, start + std::chrono::seconds(60)), PeerFailure);
  REQUIRE(Clock::now() - start >= silence);
  REQUIRE(engine.failure() ==
          "rank 1 has acknowledged nothing for 1 s: its host or the network is down (noticed by rank 0)");
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
    bool ended = false;
    try {
      ended = pair.engine->wait(operation, Clock::now() + std::chrono::seconds(5));
    } catch (const PeerFailure&) {
      ended = true;
    }
    REQUIRE(ended);
  }
}

// Ranks that know each other's addresses and have no link yet.
std::vector<Met> strangers(int size) {
  std::vector<Met> ranks(static_cast<size_t>(size));
  std::vector<net::Address> addresses;
  for (int rank = 0; rank < size; ++rank) {
    Met& met = ranks[static_cast<size_t>(rank)];
    met.me = {.key = "the key of this run", .run = "r", .rank = rank, .size = size};
    int error = 0;
    net::Socket listener = net::listen_at("127.0.0.1", 0, error);
    REQUIRE(listener.open());
    addresses.push_back({"127.0.0.1", net::port_of(listener)});
    met.contacts = std::make_unique<TcpContacts>(met.me, std::move(listener), TcpContacts::Options{});
  }
  for (Met& met : ranks) met.addresses = addresses;
  return ranks;
}

void leave_together(std::vector<std::unique_ptr<TcpEngine>>& engines) {
  std::vector<std::jthread> leave;  // a rank's destructor waits for the other ranks to end
  for (auto& engine : engines) leave.emplace_back([e = std::move(engine)]() mutable { e.reset(); });
}

TEST_CASE("a link is made by its first message, whoever calls, and by both at once") {
  constexpr int messages = 20;
  for (int round = 0; round < 30; ++round) {
    const bool both = round % 3 != 0;
    const int first = round % 2;
    std::vector<std::unique_ptr<TcpEngine>> engines;
    for (Met& met : strangers(2)) engines.push_back(std::make_unique<TcpEngine>(std::move(met)));
    std::vector<std::jthread> senders;
    for (const int from : {first, 1 - first}) {
      if (from != first && !both) continue;
      senders.emplace_back([&engine = *engines[from], from] {
        for (int i = 0; i < messages; ++i)
          engine.send(7, at::full({1000 * i}, 10 * i + from, at::kInt), 1 - from);
      });
    }
    senders.clear();
    for (const int from : {first, 1 - first}) {
      if (from != first && !both) continue;
      for (int i = 0; i < messages; ++i) {
        const at::Tensor received = at::empty({1000 * i}, at::kInt);
        const auto operation = engines[1 - from]->receive(7, received, from);
        REQUIRE(engines[1 - from]->wait(operation, Clock::now() + std::chrono::seconds(10)));
        REQUIRE(operation->error.empty());
        REQUIRE(at::equal(received, at::full({1000 * i}, 10 * i + from, at::kInt)));
      }
    }
    leave_together(engines);
  }
}

TEST_CASE("ranks take leave of those alone that they have links with, and a late receive hears of it",
          "[clock]") {
  std::vector<std::unique_ptr<TcpEngine>> engines;
  for (Met& met : strangers(3)) engines.push_back(std::make_unique<TcpEngine>(std::move(met)));
  const auto start = Clock::now();
  engines[2].reset();
  REQUIRE(Clock::now() - start < std::chrono::seconds(2));
  const auto operation = engines[1]->receive(7, at::empty({1}, at::kInt), 2);
  REQUIRE(engines[1]->wait(operation, Clock::now() + std::chrono::seconds(10)));
  REQUIRE(operation->peer_ended);
  REQUIRE_THAT(operation->error, contains_text("rank 1 cannot reach rank 2 at 127.0.0.1 port"));
  engines.pop_back();
  leave_together(engines);
}

TEST_CASE("a peer that refuses is named at once", "[clock]") {
  std::vector<Met> ranks = strangers(2);
  ranks[1].contacts.reset();
  TcpEngine engine(std::move(ranks[0]));
  const auto start = Clock::now();
  const auto operation = engine.send(7, at::full({5}, 1, at::kInt), 1);
  REQUIRE(engine.wait(operation, start + std::chrono::seconds(10)));
  REQUIRE(Clock::now() - start < std::chrono::seconds(3));
  REQUIRE_THAT(operation->error, contains_text("rank 0 cannot reach rank 1 at 127.0.0.1 port") &&
                                     contains_text("a firewall between the hosts?"));
  REQUIRE_THROWS_WITH(engine.send(7, at::full({5}, 1, at::kInt), 1), contains_text("cannot reach rank 1"));
}

TEST_CASE("a failure comes behind the message that has begun, and before those that have not") {
  constexpr size_t body = 4 << 20;  // more than a socket takes at once
  Pair pair;
  pair.engine->send(7, at::full({static_cast<int64_t>(body)}, 1, at::kByte), 1);
  pair.engine->send(7, at::full({5}, 2, at::kByte), 1);
  pair.engine->fail("boom");
  const size_t expected = 2 * sizeof(FrameHeader) + body + 4;
  std::string all, room(1 << 20, '\0');
  for (const auto start = Clock::now();
       all.size() < expected && Clock::now() - start < std::chrono::seconds(5);) {
    pollfd readable{.fd = pair.other.get(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 100) != 1) continue;
    const ssize_t got = recv(pair.other.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got == 0) break;
    if (got > 0) all.append(room, 0, static_cast<size_t>(got));
  }
  REQUIRE(all.size() == expected);
  FrameHeader last{};
  std::memcpy(&last, all.data() + sizeof(FrameHeader) + body, sizeof(last));
  CHECK(last.kind == FrameKind::failure);
  CHECK(all.ends_with("boom"));
}

}  // namespace
}  // namespace pptrain::comm

// Ranks meet as threads of this process, among strangers.
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "core/base/error.h"
#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_engine.h"
#include "parallel/comm/tcp/tcp_handshake.h"
#include "parallel/comm/tcp/tcp_meeting.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/processes.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

const std::string secret = "a secret of this test";

struct Came {
  Met met;
  std::string error;
  bool stopped = false;
  std::chrono::duration<double> time{};
};

std::future<Came> start(int rank, int size, const Rendezvous& rendezvous) {
  return std::async(std::launch::async, [=] {
    const auto begin = Clock::now();
    Came came;
    try {
      came.met = meet(rank, size, rendezvous);
    } catch (const std::exception& e) {
      came.error = e.what();
      came.stopped = dynamic_cast<const StoppedAtStart*>(&e) != nullptr;
    }
    came.time = Clock::now() - begin;
    return came;
  });
}

Rendezvous somewhere(std::chrono::milliseconds timeout = 30s) {
  Rendezvous rendezvous;
  rendezvous.host = "127.0.0.1";
  rendezvous.port = pptrain::test::free_port();
  rendezvous.timeout = timeout;
  return rendezvous;
}

// A stranger can reach the store, since it is open.
class Intruder {
 public:
  explicit Intruder(const Rendezvous& rendezvous) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.port);
    options.waitWorkers = false;
    options.timeout = 20s;
    store_ = std::make_unique<c10d::TCPStore>(rendezvous.host, options);
  }
  std::string get(const std::string& key) {
    const std::vector<uint8_t> value = store_->get("pptrain/" + key);
    return {value.begin(), value.end()};
  }
  void set(const std::string& key, const std::string& value) {
    store_->set("pptrain/" + key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  net::Address address(int rank) { return read_address(get(address_key(rank)), rank); }

 private:
  std::unique_ptr<c10d::TCPStore> store_;
};

net::Socket connect_to(const std::string& host, int port) {
  int error = 0;
  net::Socket socket = net::start_connecting(host, port, error);
  if (!socket.open()) return socket;
  pollfd entry{socket.get(), POLLOUT, 0};
  if (poll(&entry, 1, 1000) != 1 || net::error_of(socket) != 0) return {};
  return socket;
}

void require_links(std::vector<std::future<Came>>& ranks, std::chrono::duration<double> within) {
  std::vector<std::unique_ptr<TcpEngine>> engines;
  for (size_t r = 0; r < ranks.size(); ++r) {
    Came met = ranks[r].get();
    INFO("rank " << r << ": " << met.error);
    REQUIRE(met.error.empty());
    REQUIRE(met.time < within);
    engines.push_back(std::make_unique<TcpEngine>(std::move(met.met)));
  }
  const int size = static_cast<int>(ranks.size());
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      if (from == to) continue;
      engines[from]->send(7, at::full({100}, from * size + to, at::kInt), to);
      const at::Tensor received = at::empty({100}, at::kInt);
      const auto operation = engines[to]->receive(7, received, from);
      REQUIRE(engines[to]->wait(operation, Clock::now() + 5s));
      REQUIRE(at::equal(received, at::full({100}, from * size + to, at::kInt)));
    }
  }
  std::vector<std::jthread> leave;  // a rank's destructor waits for the other ranks to end
  for (auto& engine : engines) leave.emplace_back([e = std::move(engine)]() mutable { e.reset(); });
}

TEST_CASE("ranks meet with a secret and without one") {
  Rendezvous rendezvous = somewhere();
  if (GENERATE(false, true)) rendezvous.secret = secret;
  std::vector<std::future<Came>> ranks;
  for (const int r : {3, 1, 0, 2}) ranks.push_back(start(r, 4, rendezvous));
  std::swap(ranks[0], ranks[2]);
  std::swap(ranks[2], ranks[3]);
  require_links(ranks, 5s);
}

TEST_CASE("ranks meet along a tree, and any two of them can then be connected") {
  const Rendezvous rendezvous = somewhere();
  constexpr int size = 12;
  std::vector<std::future<Came>> futures;
  for (int rank = 0; rank < size; ++rank) futures.push_back(start(rank, size, rendezvous));
  size_t ends = 0;
  std::vector<std::future<Came>> ranks;
  for (auto& future : futures) {
    Came came = future.get();
    REQUIRE(came.error.empty());
    ends += came.met.links.size();
    REQUIRE(came.met.addresses.size() == size);
    std::promise<Came> again;
    again.set_value(std::move(came));
    ranks.push_back(again.get_future());
  }
  REQUIRE(ends == 2 * (size - 1));  // a full mesh has size (size - 1)
  require_links(ranks, 10s);
}

TEST_CASE("a launcher's store may hold the address of an earlier rank 0, which has ended") {
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  c10d::TCPStore launchers("127.0.0.1", options);
  Rendezvous rendezvous = somewhere();
  rendezvous.port = launchers.getPort();
  rendezvous.served_by_launcher = true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::vector<std::future<Came>> ranks(4);
    for (const size_t r : {1, 2, 3}) ranks[r] = start(static_cast<int>(r), 4, rendezvous);
    std::this_thread::sleep_for(50ms);  // they find nothing, or the address of the first attempt
    ranks[0] = start(0, 4, rendezvous);
    require_links(ranks, 10s);
  }
  Rendezvous impatient = rendezvous;
  impatient.timeout = 300ms;
  CHECK_THAT(start(1, 4, impatient).get().error, contains_text("waited 0.3 s for rank 0, whose address in"));
}

TEST_CASE("strangers, silent or not, keep nobody out and hold nobody up", "[clock]") {
  const Rendezvous rendezvous = somewhere();
  std::vector<std::future<Came>> ranks;
  for (const int r : {0, 1}) ranks.push_back(start(r, 3, rendezvous));
  std::vector<net::Socket> strangers;
  {
    Intruder intruder(rendezvous);
    for (const int r : {0, 1}) {
      const net::Address address = intruder.address(r);
      for (int i = 0; i < 150; ++i) {
        strangers.push_back(connect_to(address.host, address.port));
        REQUIRE(strangers.back().open());
        const std::string noise =
            i % 3 == 1 ? "GET / HTTP/1.1\r\n\r\n" : std::string(200, static_cast<char>(i));
        if (i % 3 != 0)
          static_cast<void>(send(strangers.back().get(), noise.data(), noise.size(), MSG_NOSIGNAL));
      }
    }
  }
  const auto before = Clock::now();
  ranks.push_back(start(2, 3, rendezvous));
  require_links(ranks, 20s);
  REQUIRE(Clock::now() - before < 3s);
}

TEST_CASE("ranks listen at the address that is used, and nowhere else") {
  const Rendezvous rendezvous = somewhere();
  std::vector<std::future<Came>> ranks;
  ranks.push_back(start(0, 2, rendezvous));
  const net::Address address = Intruder(rendezvous).address(0);
  REQUIRE(address.host == "127.0.0.1");
  for (const int port : {address.port, rendezvous.port}) {
    REQUIRE(connect_to("127.0.0.1", port).open());
    REQUIRE_FALSE(connect_to("127.0.0.2", port).open());
  }
  ranks.push_back(start(1, 2, rendezvous));
  require_links(ranks, 5s);
}

TEST_CASE("a secret does not travel, and whoever lacks it stays out") {
  Rendezvous rendezvous = somewhere();
  rendezvous.secret = secret;
  Rendezvous other = rendezvous;
  SECTION("another one") {
    other.secret = "another secret of this test";
  }
  SECTION("none") {
    other.secret.clear();
  }
  auto first = start(0, 2, rendezvous);
  const std::string run = Intruder(rendezvous).get("run");
  REQUIRE(run.find(secret) == std::string::npos);
  REQUIRE(run.ends_with(" secret"));
  const Came second = start(1, 2, other).get();
  REQUIRE_THAT(second.error, contains_text("PPTRAIN_SECRET"));
  const Came met = first.get();
  REQUIRE_THAT(met.error, contains_text("PPTRAIN_SECRET"));
  REQUIRE(met.time < 10s);
}

TEST_CASE("an address that was forged leads to an error, not to a link") {
  Rendezvous rendezvous = somewhere();
  rendezvous.secret = secret;
  auto first = start(0, 2, rendezvous);
  Intruder intruder(rendezvous);
  intruder.address(0);
  int error = 0;
  const net::Socket trap = net::listen_at("127.0.0.1", 0, error);
  intruder.set(address_key(0), to_text({"127.0.0.1", net::port_of(trap)}));
  auto second = start(1, 2, rendezvous);
  pollfd entry{trap.get(), POLLIN, 0};
  REQUIRE(poll(&entry, 1, 10'000) == 1);
  const net::Socket victim = net::accept_now(trap, error);
  // The messages of rank 0 without the right key.
  const RunIdentity false_rank{.key = "?", .run = intruder.get("run"), .rank = 0, .size = 2};
  const std::vector<uint8_t> hello = Handshake::calling(false_rank, 1).opening();
  for (const std::vector<uint8_t>& message : {hello, std::vector<uint8_t>(Handshake::proof_bytes, 7)}) {
    pollfd ready{victim.get(), POLLIN, 0};
    REQUIRE(poll(&ready, 1, 10'000) == 1);
    uint8_t heard[100];
    REQUIRE(recv(victim.get(), heard, sizeof(heard), 0) > 0);
    REQUIRE(send(victim.get(), message.data(), message.size(), MSG_NOSIGNAL) > 0);
  }
  REQUIRE_THAT(second.get().error,
               contains_text("rank 1 called rank 0") && contains_text("does not know the key"));
  REQUIRE_FALSE(first.get().error.empty());
}

TEST_CASE("what the store holds is checked") {
  for (const char* text : {"", "10.0.0.5", "10.0.0.5 0", "10.0.0.5 65536", " 5", "10.0.0.5 5x", "a b c"}) {
    REQUIRE_THROWS_WITH(read_address(text, 3), contains_text("no address for rank 3"));
  }
  REQUIRE(read_address("fe80::1%eth0 41234", 3).host == "fe80::1%eth0");
  REQUIRE(read_address("10.0.0.5 41234", 3).port == 41234);
}

TEST_CASE("a store that no rank 0 has written is refused, whatever it holds") {
  const Rendezvous rendezvous = somewhere();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore others(rendezvous.host, options);
  const size_t digits = GENERATE(size_t{0}, size_t{63}, size_t{64}, size_t{130}, size_t{10'000});
  CAPTURE(digits);
  const std::string text(digits, 'a');
  others.set("pptrain/run", std::vector<uint8_t>(text.begin(), text.end()));
  CHECK_THAT(start(1, 2, rendezvous).get().error, contains_text("found no pptrain at 127.0.0.1"));
}

TEST_CASE("a rank alone ends with its time, and says who is missing", "[clock]") {
  const Rendezvous rendezvous = somewhere(400ms);
  const Came first = start(0, 3, rendezvous).get();
  REQUIRE_THAT(first.error,
               contains_text("rank 0 waited 0.4 s for ranks 1, 2, which did not come to 127.0.0.1"));
  const Came second = start(1, 3, rendezvous).get();
  REQUIRE_THAT(second.error, contains_text("rank 1 waited 0.4 s for rank 0, which serves the meeting point"));
  for (const Came& met : {std::cref(first), std::cref(second)}) REQUIRE(met.time < 2s);
}

TEST_CASE("the time counts where something else answers, or nothing does", "[clock]") {
  Rendezvous rendezvous = somewhere(400ms);
  int error = 0;
  const net::Socket silent = net::listen_at("127.0.0.1", rendezvous.port, error);
  const Came met = start(1, 2, rendezvous).get();
  REQUIRE_THAT(met.error, contains_text("waited 0.4 s"));
  REQUIRE(met.time < 2s);
  REQUIRE_THAT(start(0, 2, rendezvous).get().error, contains_text("choose another MASTER_PORT"));
}

TEST_CASE("a rank that is told to stop does so at once, and its peers with it", "[clock]") {
  std::atomic<bool> stop = false;
  Rendezvous rendezvous = somewhere();
  Rendezvous told = rendezvous;
  told.stopped = [&] { return stop.load(); };
  const int who = GENERATE(0, 1, 2);  // 2: rank 1 without a rank 0
  std::optional<std::future<Came>> peer;
  if (who < 2) peer = start(1 - who, 3, rendezvous);
  auto rank = start(who == 0 ? 0 : 1, 3, told);
  std::this_thread::sleep_for(300ms);
  const auto before = Clock::now();
  stop = true;
  const Came met = rank.get();
  REQUIRE(Clock::now() - before < 1500ms);
  REQUIRE(met.stopped);
  REQUIRE_THAT(met.error, contains_text("told to stop while it waited for rank"));
  if (!peer) return;
  const Came other = peer->get();
  REQUIRE(Clock::now() - before < 2s);
  REQUIRE_THAT(other.error, contains_text(who == 0 ? "rank 0" : "rank 1"));
}

TEST_CASE("a host's own address is chosen, or taken from the user") {
  Rendezvous rendezvous{.host = "192.0.2.7", .port = 1};
  rendezvous.one_host = true;
  REQUIRE(own_address(rendezvous, rendezvous.host) == "127.0.0.1");
  rendezvous.one_host = false;
  rendezvous.host_address = "lo";
  REQUIRE(own_address(rendezvous, rendezvous.host) == "127.0.0.1");
  rendezvous.host_address = "127.0.0.3";
  REQUIRE(own_address(rendezvous, rendezvous.host) == "127.0.0.3");
  for (const char* wrong : {"192.0.2.7", "no-such-interface.invalid", "0.0.0.0"}) {
    rendezvous.host_address = wrong;
    REQUIRE_THROWS_WITH(own_address(rendezvous, rendezvous.host), contains_text("PPTRAIN_HOST_ADDRESS"));
  }
  rendezvous.host_address.clear();
  std::string address;
  REQUIRE_THROWS_WITH(listen_at_meeting_point(rendezvous, rendezvous.host, address),
                      contains_text("is no address of its host"));
  REQUIRE(net::is_loopback("127.0.1.1"));
  REQUIRE_FALSE(net::is_loopback("127.example.org"));
}

}  // namespace
}  // namespace pptrain::comm

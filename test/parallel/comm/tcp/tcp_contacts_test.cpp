#include "parallel/comm/tcp/tcp_contacts.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/net/socket.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;

// A rank of a run of three, and the results of its contacts.
struct Rank {
  explicit Rank(int rank, net::Socket listener = {}, std::chrono::milliseconds silent = 10s)
      : contacts(
            {.key = "the key of this run", .run = "r", .rank = rank, .size = 3}, std::move(listener),
            {.silent = silent,
             .reports_strangers = false,
             .linked =
                 [this](int peer, net::Socket socket) {
                   ++links;
                   link_to = peer;
                   link = std::move(socket);
                 },
             .unreachable =
                 [this](int peer, const std::string& text) { reason = std::to_string(peer) + " " + text; }}) {
  }

  TcpContacts contacts;
  int links = 0;
  int link_to = -1;
  net::Socket link;
  std::string reason;
};

// One round of each rank's contacts.
void look_after(std::initializer_list<Rank*> ranks) {
  for (Rank* rank : ranks) {
    std::vector<pollfd> entries;
    rank->contacts.watch(entries);
    ::poll(entries.data(), entries.size(), 5);
    rank->contacts.handle(entries);
  }
}

net::Socket listen_here(const std::string& address, int port = 0) {
  int error = 0;
  net::Socket listener = net::listen_at(address, port, error);
  REQUIRE(listener.open());
  return listener;
}

TEST_CASE("of several addresses the one that answers as the rank is found at once, whatever the others do",
          "[clock]") {
  net::Socket listener = listen_here("127.0.0.1");
  const int port = net::port_of(listener);
  std::vector<net::Address> addresses{{"127.0.0.9", port}};  // refuses
  std::vector<net::Socket> silent;                           // take the call and say nothing
  for (const char* address : {"127.0.0.2", "127.0.0.3", "127.0.0.4"}) {
    silent.push_back(listen_here(address, port));
    addresses.push_back({address, port});
  }
  addresses.push_back({"127.0.0.5", port});
  addresses.push_back({"127.0.0.1", port});
  Rank caller(0), right(1, std::move(listener)), wrong(2, listen_here("127.0.0.5", port));
  const auto start = Clock::now();
  caller.contacts.call(1, addresses);
  while ((caller.links == 0 || right.links == 0) && Clock::now() - start < 10s)
    look_after({&caller, &wrong, &right});
  CHECK(Clock::now() - start < 1500ms);
  REQUIRE(caller.links == 1);
  REQUIRE(right.links == 1);
  CHECK(wrong.links == 0);
  CHECK(caller.link_to == 1);
  CHECK(right.link_to == 0);
  CHECK(net::peer_address(caller.link) == "127.0.0.1");
  CHECK(caller.contacts.idle());
  CHECK(caller.reason.empty());
}

TEST_CASE("a rank that answers at several addresses has one link, the same on both sides") {
  for (int round = 0; round < 20; ++round) {
    int error = 0;
    net::Socket listener = net::listen_everywhere(error);
    REQUIRE(listener.open());
    const int port = net::port_of(listener);
    Rank caller(0), called(1, std::move(listener));
    caller.contacts.call(1, {{"127.0.0.1", port}, {"127.0.0.2", port}, {"127.0.0.3", port}});
    const auto start = Clock::now();
    while ((caller.links == 0 || called.links == 0) && Clock::now() - start < 10s)
      look_after({&caller, &called});
    for (int i = 0; i < 5; ++i) look_after({&caller, &called});
    REQUIRE(caller.links == 1);
    REQUIRE(called.links == 1);
    REQUIRE(::send(caller.link.get(), "x", 1, MSG_NOSIGNAL) == 1);
    pollfd entry{called.link.get(), POLLIN, 0};
    REQUIRE(poll(&entry, 1, 5000) == 1);
    char byte = 0;
    REQUIRE(recv(called.link.get(), &byte, 1, 0) == 1);
  }
}

TEST_CASE("a rank is unreachable when it is so at all of its addresses, each with its reason", "[clock]") {
  const net::Socket silent = listen_here("127.0.0.2");
  const int port = net::port_of(silent);
  Rank caller(0, {}, 100ms);
  caller.contacts.call(1, {{"127.0.0.9", port}, {"127.0.0.2", port}});
  const auto start = Clock::now();
  while (caller.reason.empty() && Clock::now() - start < 10s) look_after({&caller});
  CHECK(Clock::now() - start >= 100ms);
  CHECK_THAT(caller.reason, contains_text("1 rank 0") && contains_text("127.0.0.2 port") &&
                                contains_text("no answer") && contains_text("127.0.0.9 port") &&
                                contains_text("Connection refused"));
  CHECK(caller.contacts.idle());
}

TEST_CASE("a peer that takes calls and says nothing is given up, and so is a stranger in its place",
          "[clock]") {
  const net::Socket listener = listen_here("127.0.0.1");
  const bool speaks = GENERATE(false, true);
  Rank caller(0, {}, 300ms);
  caller.contacts.call(1, {{"127.0.0.1", net::port_of(listener)}});
  net::Socket taken;
  const auto start = Clock::now();
  while (caller.reason.empty() && Clock::now() - start < 10s) {
    look_after({&caller});
    if (!speaks || taken.open()) continue;
    int error = 0;
    taken = net::accept_now(listener, error);
    const std::string words = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    if (taken.open()) static_cast<void>(::send(taken.get(), words.data(), words.size(), MSG_NOSIGNAL));
  }
  CHECK(caller.links == 0);
  REQUIRE_THAT(caller.reason,
               contains_text("1 rank 0") && contains_text(speaks ? "is no pptrain" : "no answer"));
  REQUIRE(caller.contacts.idle());
}

}  // namespace
}  // namespace pptrain::comm

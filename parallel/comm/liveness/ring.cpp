#include "parallel/comm/liveness/ring.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/signal_block.h"
#include "core/net/address.h"
#include "core/net/timed_socket.h"
#include "parallel/comm/gather_values.h"
#include "parallel/comm/liveness/activity.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* loopback = "127.0.0.1";

// What a rank tells the others of where it is.
struct Card {
  std::array<char, 64> name{};        // of the host, for people
  std::array<char, 96> machine{};     // equal where two ranks reach each other by loopback
  std::array<char, 384> addresses{};  // others', with spaces between
  std::array<char, 16> secret{};      // rank 0's is the run's
};

// First bytes of a connection, both ways.
struct Hello {
  uint64_t magic = 0x7070747268656c6cULL;
  std::array<char, 16> secret{};
  int32_t from = 0, to = 0;
};
static_assert(std::has_unique_object_representations_v<Hello>, "it is compared as bytes");

template <size_t n>
void copy_text(std::array<char, n>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), n - 1));
}

// The running kernel and its network namespace.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  if (readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) space[0] = '\0';
  return boot + space.data();
}

// Those of all interfaces that fit into a Card, with spaces between.
std::string addresses() {
  std::string all;
  for (const std::string& text : net::addresses_for_others()) {
    if (all.size() + text.size() + 1 < sizeof(Card::addresses)) all += text + " ";
  }
  return all;
}

Card own_card(const std::string& address, const std::string& own_machine) {
  Card card;
  copy_text(card.name, host_name());
  copy_text(card.machine, own_machine.empty() ? machine() : own_machine);
  copy_text(card.addresses, address.empty() ? addresses() : address);
  std::random_device random;
  for (size_t i = 0; i < card.secret.size(); i += sizeof(uint32_t)) {
    const uint32_t word = random();
    std::memcpy(card.secret.data() + i, &word, sizeof(word));
  }
  return card;
}

bool same_machine(const Card& a, const Card& b) {
  return a.machine == b.machine;
}

std::string first_address(const Card& card) {
  const std::string all(card.addresses.data());
  return all.substr(0, all.find(' '));
}

std::vector<std::string> host_names(const std::vector<Card>& cards) {
  std::vector<std::string> names;
  for (const Card& card : cards) {
    const bool twin = std::ranges::any_of(
        cards, [&](const Card& other) { return other.name == card.name && !same_machine(other, card); });
    names.push_back(
        fmt::format("host {}{}{}", card.name.data(), twin ? ", " : "", twin ? first_address(card) : ""));
  }
  return names;
}

net::Socket listen_for_previous(const std::string& address) {
  int error = 0;
  net::Socket socket = address.empty() ? net::listen_everywhere(error) : net::listen_at(address, 0, error);
  if (!socket.open()) {
    throw Error(fmt::format("cannot listen for heartbeats{}{}: {}", address.empty() ? "" : " at ", address,
                            std::generic_category().message(error)));
  }
  return socket;
}

// Waits for the previous rank. Who says nothing, or something else, is sent away and keeps nobody.
net::Socket accept_previous(const net::Socket& listener, const Hello& expected, const Hello& answer,
                            net::Deadline deadline) {
  struct Visitor {
    net::Socket socket;
    Hello hello;
    size_t read = 0;
  };
  std::vector<Visitor> visitors;
  constexpr size_t most_visitors = 64;
  while (true) {
    std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
    for (const Visitor& v : visitors) entries.push_back({v.socket.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return {};
    if (poll(entries.data(), entries.size(), static_cast<int>(std::min<int64_t>(left, 1000))) <= 0) continue;
    for (size_t i = 0; i + 1 < entries.size(); ++i) {
      Visitor& v = visitors[i];
      if (entries[i + 1].revents == 0) continue;
      const ssize_t got = recv(v.socket.get(), reinterpret_cast<char*>(&v.hello) + v.read,
                               sizeof(Hello) - v.read, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got > 0) v.read += static_cast<size_t>(got);
      if (got > 0 && v.read < sizeof(Hello)) continue;
      const bool ours = got > 0 && v.hello.magic == expected.magic && v.hello.secret == expected.secret &&
                        v.hello.from == expected.from && v.hello.to == expected.to;
      if (!ours) {
        v.socket.close();
        continue;
      }
      net::send_all(v.socket, &answer, sizeof(answer), deadline, "the previous rank");
      return std::move(v.socket);
    }
    std::erase_if(visitors, [](const Visitor& v) { return !v.socket.open(); });
    if ((entries[0].revents & POLLIN) == 0) continue;
    int error = 0;
    net::Socket visitor = net::accept_now(listener, error);
    if (!visitor.open()) continue;
    if (visitors.size() == most_visitors) visitors.erase(visitors.begin());
    visitors.push_back({.socket = std::move(visitor), .hello = {}, .read = 0});
  }
}

std::string bytes_of(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof(hello)};
}

// Where to call the rank that has this card; several addresses, for one may lead to another machine of the
// same name.
std::vector<std::string> addresses_to_call(const Card& card, bool near, bool one_machine) {
  std::vector<std::string> all;
  if (near) all.emplace_back(loopback);
  if (one_machine) return all;
  std::istringstream words(card.addresses.data());
  for (std::string address; words >> address;) all.push_back(address);
  return all;
}

void make_quick(const net::Socket& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Ring make_ring(Communicator& communicator, std::chrono::milliseconds patience, const RingPlace& place) {
  Communicator& world = communicator.host();
  const int size = world.size(), rank = world.rank();
  const int after = (rank + 1) % size, before = (rank + size - 1) % size;
  std::string fault, address;
  try {
    if (place.address) address = place.address();
  } catch (const Error& error) {
    fault = error.what();
  }
  const std::vector<Card> cards = gather_values(world, own_card(address, place.machine));
  Ring ring{.hosts = host_names(cards), .previous = {}, .next = {}, .fault = std::move(fault)};
  const bool one_machine =
      std::ranges::all_of(cards, [&](const Card& card) { return same_machine(card, cards[0]); });
  net::Socket listener;
  try {
    if (ring.fault.empty()) listener = listen_for_previous(one_machine ? loopback : address);
  } catch (const Error& error) {
    ring.fault = error.what();
  }
  const std::vector<int32_t> ports =
      gather_values(world, listener.open() ? int32_t{net::port_of(listener)} : int32_t{0});
  if (!listener.open() || ports[after] == 0) return ring;

  const net::Deadline deadline = Clock::now() + patience;
  const Hello to_next{.secret = cards[0].secret, .from = rank, .to = after};
  const Hello from_next{.secret = cards[0].secret, .from = after, .to = rank};
  const Hello from_previous{.secret = cards[0].secret, .from = before, .to = rank};
  const Hello to_previous{.secret = cards[0].secret, .from = rank, .to = before};
  const bool near = same_machine(cards[rank], cards[after]);
  const std::vector<std::string> called = addresses_to_call(cards[after], near, one_machine);
  std::string reason;
  {
    const SignalBlock block;
    const std::jthread accept([&] {
      try {
        ring.previous = accept_previous(listener, from_previous, to_previous, deadline);
      } catch (const Error&) {
        ring.previous.close();
      }
    });
    ring.next = net::call_any(called, ports[after], bytes_of(to_next), bytes_of(from_next), deadline, reason);
  }
  if (!ring.next.open()) {
    ring.fault =
        fmt::format("{} cannot reach {} at {} (port {}): {}", rank_name(rank, ring.hosts[rank]),
                    rank_name(after, ring.hosts[after]), fmt::join(called, ", "), ports[after], reason);
  } else if (!ring.previous.open()) {
    ring.fault = fmt::format("{} was not reached by {}", rank_name(rank, ring.hosts[rank]),
                             rank_name(before, ring.hosts[before]));
  } else {
    make_quick(ring.next);
    make_quick(ring.previous);
  }
  return ring;
}

}  // namespace pptrain::comm

#include "parallel/comm/liveness/ring.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_handshake.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds call_time{2000};  // so long one may take

// What a rank tells the others about its place.
struct Card {
  std::array<char, 64> name{};        // of the host, for people
  std::array<char, 96> machine{};     // equal if two ranks reach each other by loopback
  std::array<char, 384> addresses{};  // others', with spaces between
  Digest key{};                       // rank 0's is the run's
};

template <size_t n>
void copy_text(std::array<char, n>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), n - 1));
}

// The addresses of all interfaces, as many as fit into a Card, with spaces between.
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
  copy_text(card.machine, own_machine.empty() ? loopback_identity() : own_machine);
  copy_text(card.addresses, address.empty() ? addresses() : address);
  card.key = random_bytes();
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
                            net::error_text(error)));
  }
  return socket;
}

// Addresses at which to call the rank of this card; several, since one may lead to another machine of the
// same name.
std::vector<net::Address> addresses_to_call(const Card& card, int port, bool near, bool one_machine) {
  std::vector<net::Address> all;
  if (near) all.push_back({net::loopback, port});
  if (one_machine) return all;
  std::istringstream words(card.addresses.data());
  for (std::string address; words >> address;) all.push_back({address, port});
  return all;
}

void make_quick(const net::Socket& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Calls the next rank, and waits for the call of the previous one; both may be the same rank.
void connect(Ring& ring, const RunIdentity& me, net::Socket listener, const std::vector<net::Address>& next,
             std::chrono::milliseconds patience) {
  const net::Deadline deadline = Clock::now() + patience;
  const int after = (me.rank + 1) % me.size, before = (me.rank + me.size - 1) % me.size;
  TcpContacts visitors(me, std::move(listener),
                       {.reports_strangers = false, .linked = [&](int peer, net::Socket socket) {
                          if (peer == before) ring.previous = std::move(socket);
                        }});
  TcpContacts calls(me, net::Socket(),
                    {.refused = patience - call_time,
                     .silent = call_time,
                     .linked = [&](int, net::Socket socket) { ring.next = std::move(socket); },
                     .unreachable = [&](int, const std::string& reason) { ring.fault = reason; }});
  calls.call(after, next);
  std::vector<pollfd> entries;
  while ((!calls.idle() || !ring.previous.open()) && Clock::now() < deadline) {
    entries.clear();
    calls.watch(entries);
    const size_t own = entries.size();
    visitors.watch(entries);
    poll(entries.data(), entries.size(), static_cast<int>(TcpContacts::look_every.count()));
    calls.handle(std::span(entries).first(own));
    visitors.handle(std::span(entries).subspan(own));
  }
}

}  // namespace

Ring make_ring(Communicator& communicator, std::chrono::milliseconds patience,
               const std::function<std::string()>& own_address, const std::string& own_machine) {
  Communicator& world = communicator.host();
  const int size = world.size(), rank = world.rank();
  const int after = (rank + 1) % size, before = (rank + size - 1) % size;
  Ring ring;
  const auto attempt = [&ring](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      ring.fault = error.what();
    }
  };
  std::string address;
  attempt([&] {
    if (own_address) address = own_address();
  });
  const std::vector<Card> cards = gather_values(world, own_card(address, own_machine));
  ring.hosts = host_names(cards);
  const bool one_machine =
      std::ranges::all_of(cards, [&](const Card& card) { return same_machine(card, cards[0]); });
  net::Socket listener;
  attempt([&] {
    if (ring.fault.empty()) listener = listen_for_previous(one_machine ? net::loopback : address);
  });
  const std::vector<int32_t> ports =
      gather_values(world, listener.open() ? int32_t{net::port_of(listener)} : int32_t{0});
  if (!listener.open() || ports[after] == 0) return ring;
  attempt([&] {
    const bool near = same_machine(cards[rank], cards[after]);
    connect(ring, {.key = to_hex(cards[0].key), .run = "heartbeats", .rank = rank, .size = size},
            std::move(listener), addresses_to_call(cards[after], ports[after], near, one_machine), patience);
  });
  if (ring.next.open() && ring.previous.open()) {
    make_quick(ring.next);
    make_quick(ring.previous);
  } else if (ring.fault.empty()) {
    ring.fault = ring.next.open()
                     ? fmt::format("{} was not reached by {}", rank_name(rank, ring.hosts[rank]),
                                   rank_name(before, ring.hosts[before]))
                     : fmt::format("{} cannot reach {}: no answer", rank_name(rank, ring.hosts[rank]),
                                   rank_name(after, ring.hosts[after]));
  }
  return ring;
}

}  // namespace pptrain::comm

#include "parallel/comm/tcp/tcp_contacts.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "parallel/comm/tcp/tcp_inbox.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds visit_time{10};
constexpr std::chrono::milliseconds call_again{50};
constexpr size_t strangers = 64;  // visitors at once, beyond the ranks that may come

// The connection itself failed, which says nothing of the process at its other end.
class Broken : public Error {
 public:
  using Error::Error;
};

}  // namespace

// A visitor, or the call of a rank at one of its addresses.
struct TcpContacts::Contact {
  int callee = -1;         // the rank that is called; -1: a visitor
  net::Address address{};  // of the rank that is called
  net::Socket socket{};    // closed: a call that is to be made
  Handshake handshake;
  bool connecting = false;
  bool spoke = false;
  bool over = false;           // with a link or without
  std::vector<uint8_t> in{};   // of the message that comes
  std::vector<uint8_t> out{};  // not sent yet
  net::Deadline expires = net::Deadline::max();
  net::Deadline call_at{};
  net::Deadline give_up = net::Deadline::max();  // from the first refusal on
  std::string failure{};                         // why it is called no more

  bool visits() const { return callee < 0; }
};

std::string to_text(const net::Address& address) {
  return fmt::format("{} {}", address.host, address.port);
}

net::Address read_address(const std::string& text, int rank) {
  const size_t space = text.find(' ');
  const bool has_host = space != std::string::npos && space > 0 && space < 100;
  const auto port = to_number<int>(has_host ? std::string_view(text).substr(space + 1) : "");
  if (!port || *port < 1 || *port > 65535) {
    throw Error(fmt::format("the meeting point holds no address for rank {}, but \"{}\"", rank,
                            failure_text(text.substr(0, 100))));
  }
  return {.host = text.substr(0, space), .port = *port};
}

TcpContacts::TcpContacts(RunIdentity me, net::Socket listener, Options options)
    : me_(std::move(me)), listener_(std::move(listener)), options_(std::move(options)) {}

TcpContacts::~TcpContacts() = default;

void TcpContacts::call(int peer, const std::vector<net::Address>& addresses) {
  if (std::ranges::find(contacts_, peer, &Contact::callee) != contacts_.end()) return;
  for (const net::Address& address : addresses) {
    contacts_.push_back({.callee = peer, .address = address, .handshake = Handshake::calling(me_, peer)});
  }
  dial();
}

void TcpContacts::close_door() {
  listener_.close();
  std::erase_if(contacts_, [](const Contact& contact) { return contact.visits(); });
}

bool TcpContacts::idle() const {
  return std::ranges::all_of(contacts_, &Contact::visits);
}

// Makes the calls that are due. A rank that has this rank's proof at one address is called at no other.
void TcpContacts::dial() {
  for (Contact& contact : contacts_) {
    const bool waits =
        !contact.visits() && !contact.over && !contact.socket.open() && contact.failure.empty();
    if (!waits || Clock::now() < contact.call_at) continue;
    const bool proved = std::ranges::any_of(contacts_, [&](const Contact& other) {
      return other.callee == contact.callee && other.socket.open() && other.handshake.proved();
    });
    if (proved) continue;
    contact.handshake = Handshake::calling(me_, contact.callee);
    contact.in.clear();
    contact.out.clear();
    contact.connecting = true;
    contact.expires = options_.silent == std::chrono::milliseconds::max() ? net::Deadline::max()
                                                                          : Clock::now() + options_.silent;
    int error = 0;
    contact.socket = net::start_connecting(contact.address.host, contact.address.port, error);
    if (!contact.socket.open()) lose(contact, net::error_text(error));
  }
  std::erase_if(contacts_, [](const Contact& contact) { return contact.over; });
}

void TcpContacts::watch(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.get(), POLLIN, 0});  // poll() skips negative ones
  for (const Contact& contact : contacts_) {
    const int events = contact.connecting ? POLLOUT : contact.out.empty() ? POLLIN : POLLIN | POLLOUT;
    entries.push_back({contact.socket.get(), static_cast<short>(events), 0});
  }
}

void TcpContacts::handle(std::span<const pollfd> entries) {
  size_t i = 1;
  for (Contact& contact : contacts_) advance(contact, entries[i++].revents);
  std::erase_if(contacts_, [](const Contact& contact) { return contact.over; });
  if (entries[0].revents != 0) accept_visitors();
  dial();
}

void TcpContacts::accept_visitors() {
  while (listener_.open()) {
    int error = 0;
    net::Socket socket = net::accept_now(listener_, error);
    if (!socket.open() && error == 0) return;
    if (!socket.open()) {
      throw Error(
          fmt::format("rank {} cannot take a connection: {}; raise the limit of open files with ulimit -n",
                      me_.rank, net::error_text(error)));
    }
    make_room();
    contacts_.push_back({.socket = std::move(socket),
                         .handshake = Handshake::called(me_),
                         .expires = Clock::now() + visit_time});
  }
}

// If too many visitors are there, the one that has been silent for longest goes.
void TcpContacts::make_room() {
  const auto most = strangers + static_cast<size_t>(me_.size);
  if (static_cast<size_t>(std::ranges::count_if(contacts_, &Contact::visits)) < most) return;
  auto gone = std::ranges::find_if(contacts_, [](const Contact& c) { return c.visits() && !c.spoke; });
  if (gone == contacts_.end()) gone = std::ranges::find_if(contacts_, &Contact::visits);
  turn_away(*gone, "came with too many others");
  contacts_.erase(gone);
}

void TcpContacts::advance(Contact& contact, short ready) {
  if (contact.over || !contact.socket.open()) return;
  try {
    if (contact.connecting) {
      if (ready != 0) connected(contact);
    } else if ((ready & ~POLLOUT) != 0) {
      read(contact);
    }
    send(contact);
    if (contact.handshake.done() && contact.out.empty()) return link(contact);
    if (Clock::now() > contact.expires) throw Broken(contact.visits() ? "was silent" : "no answer");
  } catch (const Broken& e) {
    lose(contact, e.what());
  } catch (const Error& e) {
    if (contact.visits()) return turn_away(contact, e.what());
    give_up(contact, fmt::format("rank {} called rank {} at {} port {}, but what answers there {}", me_.rank,
                                 contact.callee, contact.address.host, contact.address.port, e.what()));
  }
}

void TcpContacts::connected(Contact& contact) {
  if (const int error = net::error_of(contact.socket); error != 0) throw Broken(net::error_text(error));
  contact.connecting = false;
  contact.out = contact.handshake.opening();
}

void TcpContacts::read(Contact& contact) {
  uint8_t bytes[Handshake::hello_bytes];
  const size_t wanted = contact.handshake.wanted() - contact.in.size();
  if (wanted == 0) return;  // all is known; the proof in return has yet to leave
  const ssize_t got = recv(contact.socket.get(), bytes, std::min(wanted, sizeof(bytes)), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) throw Broken(got < 0 ? net::error_text(errno) : "closed the connection");
  contact.spoke = true;
  contact.in.insert(contact.in.end(), bytes, bytes + got);
  if (contact.in.size() < contact.handshake.wanted()) return;
  const std::vector<uint8_t> answer = contact.handshake.take(std::exchange(contact.in, {}));
  contact.out.insert(contact.out.end(), answer.begin(), answer.end());
  if (contact.visits() || !contact.handshake.proved()) return;
  // Only one of several calls gets the proof, so that both sides have the same link.
  for (Contact& other : contacts_) {
    if (&other != &contact && other.callee == contact.callee) other.socket.close();
  }
}

void TcpContacts::send(Contact& contact) {
  while (!contact.out.empty()) {
    const ssize_t sent =
        ::send(contact.socket.get(), contact.out.data(), contact.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) throw Broken(net::error_text(errno));
    contact.out.erase(contact.out.begin(), contact.out.begin() + sent);
  }
}

void TcpContacts::link(Contact& contact) {
  for (Contact& other : contacts_) {
    if (!contact.visits() && other.callee == contact.callee) other.over = true;
  }
  contact.over = true;
  log_of(Subsystem::comm)
      .debug("TCP link to rank {}{}", contact.handshake.peer(),
             contact.visits()
                 ? ", which called"
                 : fmt::format(", called at {} port {}", contact.address.host, contact.address.port));
  options_.linked(contact.handshake.peer(), std::move(contact.socket));
}

// The connection has broken. A call is made again for a while, unless the other side had this rank's proof.
void TcpContacts::lose(Contact& contact, const std::string& reason) {
  if (contact.visits()) {
    if (contact.handshake.peer() < 0) return turn_away(contact, reason);
    contact.over = true;  // a rank that needs its call no more
    return;
  }
  const auto now = Clock::now();
  contact.socket.close();
  contact.call_at = now + call_again;
  contact.give_up = std::min(contact.give_up, now + options_.refused);
  const bool proved = contact.handshake.proved();
  if (!proved && now < contact.give_up) return;
  give_up(contact, fmt::format("rank {} cannot reach rank {} at {} port {}: {}; {}", me_.rank, contact.callee,
                               contact.address.host, contact.address.port, reason,
                               proved ? "has it ended, or another PPTRAIN_SECRET?"
                                      : "has it ended, or is there a firewall between the hosts?"));
}

// This address is called no more; the rank is unreachable when that holds for all of its addresses.
void TcpContacts::give_up(Contact& contact, const std::string& reason) {
  contact.socket.close();
  contact.failure = reason;
  std::vector<std::string> failures;
  for (const Contact& other : contacts_) {
    if (other.callee != contact.callee) continue;
    if (other.failure.empty()) return;
    failures.push_back(other.failure);
  }
  for (Contact& other : contacts_) other.over = other.over || other.callee == contact.callee;
  options_.unreachable(contact.callee, fmt::format("{}", fmt::join(failures, "; ")));
}

void TcpContacts::turn_away(Contact& contact, const std::string& reason) {
  contact.over = true;
  if (!options_.reports_strangers || std::exchange(reported_stranger_, true)) return;
  fmt::print(stderr, "rank {} turned away a connection from {}, which {}; more of them are not reported\n",
             me_.rank, net::peer_address(contact.socket), reason);
}

}  // namespace pptrain::comm

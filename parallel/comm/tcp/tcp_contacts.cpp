#include "parallel/comm/tcp/tcp_contacts.h"

#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_inbox.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds visit_time{10};
constexpr std::chrono::milliseconds call_again{50};
constexpr size_t strangers = 64;  // visitors at once, beyond the ranks that may come

std::string text_of(int error) {
  return std::generic_category().message(error);
}

// The connection itself failed, which says nothing of who is at its other end.
class Broken : public Error {
 public:
  using Error::Error;
};

}  // namespace

std::string to_text(const LinkAddress& address) {
  return fmt::format("{} {}", address.host, address.port);
}

LinkAddress read_address(const std::string& text, int rank) {
  LinkAddress address;
  const size_t space = text.find(' ');
  address.host = text.substr(0, space);
  const char* const end = text.data() + text.size();
  const bool whole = space != std::string::npos && space > 0 && space < 100;
  const auto [stop, error] = std::from_chars(whole ? text.data() + space + 1 : end, end, address.port);
  if (!whole || error != std::errc() || stop != end || address.port < 1 || address.port > 65535) {
    throw Error(fmt::format("the meeting point holds no address for rank {}, but \"{}\"", rank,
                            failure_text(text.substr(0, 100))));
  }
  return address;
}

TcpContacts::TcpContacts(RunIdentity me, net::Socket listener, Patience patience, Ends ends)
    : me_(std::move(me)), listener_(std::move(listener)), patience_(patience), ends_(std::move(ends)) {}

void TcpContacts::hand_over(Patience patience, Ends ends) {
  patience_ = patience;
  ends_ = std::move(ends);
}

void TcpContacts::call(int peer, const LinkAddress& address) {
  if (callees_.try_emplace(peer, Callee{.address = address}).second) dial();
}

void TcpContacts::close_door() {
  listener_.close();
  std::erase_if(contacts_, [](const Contact& contact) { return contact.callee < 0; });
}

void TcpContacts::dial() {
  for (auto next = callees_.begin(); next != callees_.end();) {
    auto& [rank, callee] = *next++;  // a call that fails for good is erased
    if (callee.called || Clock::now() < callee.call_at) continue;
    Contact contact{.socket = {},
                    .handshake = Handshake::calling(me_, rank),
                    .callee = rank,
                    .expires = patience_.silent == std::chrono::milliseconds::max()
                                   ? net::Deadline::max()
                                   : Clock::now() + patience_.silent};
    int error = 0;
    contact.socket = net::start_connecting(callee.address.host, callee.address.port, error);
    if (!contact.socket.open()) {
      call_failed(contact, text_of(error));
      continue;
    }
    contact.connecting = true;
    callee.called = true;
    contacts_.push_back(std::move(contact));
  }
}

void TcpContacts::call_failed(const Contact& contact, const std::string& reason) {
  Callee& callee = callees_.at(contact.callee);
  callee.called = false;
  callee.call_at = Clock::now() + call_again;
  callee.give_up = std::min(callee.give_up, Clock::now() + patience_.refused);
  if (!contact.handshake.proved() && Clock::now() < callee.give_up) return;
  give_up(contact.callee, fmt::format("rank {} cannot reach rank {} at {} port {}: {}; {}", me_.rank,
                                      contact.callee, callee.address.host, callee.address.port, reason,
                                      contact.handshake.proved()
                                          ? "has it ended, or another PPTRAIN_SECRET?"
                                          : "has it ended, or is there a firewall between the hosts?"));
}

void TcpContacts::give_up(int callee, const std::string& reason) {
  callees_.erase(callee);
  ends_.unreachable(callee, reason);
}

void TcpContacts::watch(std::vector<pollfd>& entries) const {
  entries.push_back({listener_.get(), POLLIN, 0});  // poll() skips negative ones
  for (const Contact& contact : contacts_) {
    const int events = contact.connecting || !contact.out.empty() ? POLLIN | POLLOUT : POLLIN;
    entries.push_back({contact.socket.get(), static_cast<short>(contact.connecting ? POLLOUT : events), 0});
  }
}

void TcpContacts::handle(std::span<const pollfd> entries) {
  size_t i = 1;
  for (auto contact = contacts_.begin(); contact != contacts_.end();) {
    contact = advance(*contact, entries[i++].revents) ? std::next(contact) : contacts_.erase(contact);
  }
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
                      me_.rank, text_of(error)));
    }
    make_room();
    contacts_.push_back({.socket = std::move(socket),
                         .handshake = Handshake::called(me_),
                         .expires = Clock::now() + visit_time});
  }
}

// Where too many visitors are there, the one that has been silent for longest goes.
void TcpContacts::make_room() {
  const auto visits = [](const Contact& contact) { return contact.callee < 0; };
  const auto most = strangers + static_cast<size_t>(me_.size);
  if (static_cast<size_t>(std::ranges::count_if(contacts_, visits)) < most) return;
  auto gone = std::ranges::find_if(contacts_, [&](const Contact& c) { return visits(c) && !c.spoke; });
  if (gone == contacts_.end()) gone = std::ranges::find_if(contacts_, visits);
  turn_away(*gone, "came with too many others");
  contacts_.erase(gone);
}

bool TcpContacts::advance(Contact& contact, short ready) {
  try {
    if (contact.connecting) {
      if (ready != 0) connected(contact);
    } else if ((ready & ~POLLOUT) != 0) {
      read(contact);
    }
    send(contact);
    if (contact.handshake.done() && contact.out.empty()) {
      if (contact.callee >= 0) callees_.erase(contact.callee);
      ends_.linked(contact.handshake.peer(), std::move(contact.socket));
      return false;
    }
    if (Clock::now() > contact.expires) throw Broken(contact.callee < 0 ? "was silent" : "no answer");
    return true;
  } catch (const Broken& e) {
    const bool known = contact.handshake.peer() >= 0;  // a rank that needs its call no more
    if (contact.callee >= 0) {
      call_failed(contact, e.what());
    } else if (!known) {
      turn_away(contact, e.what());
    }
  } catch (const Error& e) {
    if (contact.callee < 0) {
      turn_away(contact, e.what());
    } else {
      const LinkAddress& address = callees_.at(contact.callee).address;
      give_up(contact.callee, fmt::format("rank {} called rank {} at {} port {}, but what answers there {}",
                                          me_.rank, contact.callee, address.host, address.port, e.what()));
    }
  }
  return false;
}

void TcpContacts::connected(Contact& contact) {
  if (const int error = net::error_of(contact.socket); error != 0) throw Broken(text_of(error));
  contact.connecting = false;
  contact.out = contact.handshake.opening();
}

void TcpContacts::read(Contact& contact) {
  uint8_t bytes[Handshake::hello_bytes];
  const size_t wanted = contact.handshake.wanted() - contact.in.size();
  if (wanted == 0) return;  // all is known; the proof in return has yet to leave
  const ssize_t got = recv(contact.socket.get(), bytes, std::min(wanted, sizeof(bytes)), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) throw Broken(got < 0 ? text_of(errno) : "closed the connection");
  contact.spoke = true;
  contact.in.insert(contact.in.end(), bytes, bytes + got);
  if (contact.in.size() < contact.handshake.wanted()) return;
  const std::vector<uint8_t> answer = contact.handshake.take(std::exchange(contact.in, {}));
  contact.out.insert(contact.out.end(), answer.begin(), answer.end());
}

void TcpContacts::send(Contact& contact) {
  while (!contact.out.empty()) {
    const ssize_t sent =
        ::send(contact.socket.get(), contact.out.data(), contact.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) throw Broken(text_of(errno));
    contact.out.erase(contact.out.begin(), contact.out.begin() + sent);
  }
}

void TcpContacts::turn_away(const Contact& contact, const std::string& reason) {
  if (std::exchange(reported_visitor_, true)) return;
  fmt::print(stderr, "rank {} turned away a connection from {}, which {}; more of them are not reported\n",
             me_.rank, net::peer_address(contact.socket), reason);
}

}  // namespace pptrain::comm

#include "parallel/comm/tcp/tcp_meeting.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_frame.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds visit_time{10};
// A rank listens before it leaves its address: who is refused for so long calls one that has ended.
constexpr std::chrono::seconds refusal_time{10};
constexpr std::chrono::milliseconds call_again{50};
constexpr std::chrono::milliseconds longest_look{100};
constexpr int poll_ms = 20;
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

std::string address_key(int rank) {
  return fmt::format("address/{}", rank);
}

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

Meeting::Meeting(const RunIdentity& me, Socket listener, TcpStore& store, const StartPatience& patience)
    : me_(me),
      listener_(std::move(listener)),
      store_(store),
      patience_(patience),
      links_(me.size),
      heard_(me.size, false),
      busy_(me.size, false) {}

std::vector<Socket> Meeting::run() {
  while (!released()) round();
  if (me_.rank == 0) tell_all_linked();
  return std::move(links_);
}

bool Meeting::all_linked() const {
  return std::ranges::count_if(links_, &Socket::open) == me_.size - 1;
}

bool Meeting::released() const {
  if (!all_linked()) return false;
  return me_.rank == 0 ? std::ranges::count(heard_, true) == me_.size - 1 : heard_[0];
}

void Meeting::round() {
  patience_.check(awaited());
  if (patience_.over()) throw Error(report());
  if (!all_linked()) {
    look_at_store();
    call();
  } else if (me_.rank > 0 && !told_) {
    tell_all_linked();
  }
  wait_for_events();
}

// --- the store ---

void Meeting::look_at_store() {
  if (Clock::now() < next_look_) return;
  if (const auto word = store_.find("failure", patience_)) throw PeerFailure(failure_text(*word));
  for (; next_callee_ < me_.rank; ++next_callee_) {
    const auto text = store_.find(address_key(next_callee_), patience_);
    if (!text) break;
    callees_[next_callee_].address = read_address(*text, next_callee_);
  }
  next_look_ = Clock::now() + look_again_;
  look_again_ = std::min(look_again_ * 2, longest_look);
}

std::string Meeting::awaited() const {
  std::vector<int> missing;
  for (int r = 0; r < me_.size; ++r) {
    if (r != me_.rank && (all_linked() ? me_.rank == 0 && !heard_[r] : !links_[r].open()))
      missing.push_back(r);
  }
  if (missing.empty()) missing.push_back(0);
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

// Who is missing when the time is over, and what is known of them.
std::string Meeting::report() {
  const std::string waited = fmt::format("rank {} waited {:.1f} s for ", me_.rank, patience_.seconds());
  if (all_linked()) {
    return waited + awaited() +
           (me_.rank == 0 ? ", which came but did not connect to all other ranks"
                          : " to hear from all ranks");
  }
  std::vector<int> absent, unreachable;
  for (int r = 0; r < me_.size; ++r) {
    if (r == me_.rank || links_[r].open()) continue;
    const bool came = store_.find(address_key(r), patience_.for_last_words()).has_value();
    (came ? unreachable : absent).push_back(r);
  }
  const auto ranks = [](const std::vector<int>& list) {
    return fmt::format("rank{} {}", list.size() == 1 ? "" : "s", fmt::join(list, ", "));
  };
  std::string text = waited;
  if (!absent.empty()) text += fmt::format("{}, which did not come to {}", ranks(absent), store_.name());
  if (!unreachable.empty()) {
    text += fmt::format(
        "{}{}, which came but have no connection with this rank: a firewall between the hosts, or an address "
        "that "
        "does not lead there (PPTRAIN_HOST_ADDRESS)?",
        absent.empty() ? "" : "; and for ", ranks(unreachable));
  }
  return text;
}

// --- calls and visitors ---

void Meeting::call() {
  for (auto& [rank, callee] : callees_) {
    if (callee.called || links_[rank].open() || Clock::now() < callee.call_at) continue;
    Contact contact{.socket = {}, .handshake = Handshake::calling(me_, rank), .callee = rank};
    int error = 0;
    contact.socket = start_connecting(callee.address.host, callee.address.port, error);
    if (!contact.socket.open()) {
      call_failed(contact, text_of(error));
      continue;
    }
    contact.connecting = true;
    callee.called = true;
    contacts_.push_back(std::move(contact));
  }
}

void Meeting::call_failed(const Contact& contact, const std::string& reason) {
  Callee& callee = callees_.at(contact.callee);
  callee.called = false;
  callee.call_at = Clock::now() + call_again;
  callee.give_up = std::min(callee.give_up, Clock::now() + refusal_time);
  if (!contact.handshake.proved() && Clock::now() < callee.give_up) return;
  throw Error(fmt::format("rank {} cannot reach rank {} at {} port {}: {}; {}", me_.rank, contact.callee,
                          callee.address.host, callee.address.port, reason,
                          contact.handshake.proved()
                              ? "has it ended, or another PPTRAIN_SECRET?"
                              : "has it ended, or is there a firewall between the hosts?"));
}

void Meeting::wait_for_events() {
  const bool visitors = listener_.open() && !all_linked();
  std::vector<pollfd> entries{{visitors ? listener_.get() : -1, POLLIN, 0}};
  for (const Contact& contact : contacts_) {
    const int events = contact.connecting || !contact.out.empty() ? POLLIN | POLLOUT : POLLIN;
    entries.push_back({contact.socket.get(), static_cast<short>(contact.connecting ? POLLOUT : events), 0});
  }
  for (int r = 0; r < me_.size; ++r) {
    // Once a rank has told that it has all links, others may come and go before it hears of that.
    const bool watched = !busy_[r] && (me_.rank == 0 || r == 0 || !told_);
    entries.push_back({watched ? links_[r].get() : -1, POLLIN, 0});
  }
  if (poll(entries.data(), entries.size(), poll_ms) < 0 && errno != EINTR) {
    throw Error("poll failed: " + text_of(errno));
  }
  handle(entries);
}

void Meeting::handle(const std::vector<pollfd>& entries) {
  size_t i = 1;
  for (auto contact = contacts_.begin(); contact != contacts_.end();) {
    contact = advance(*contact, entries[i++].revents) ? std::next(contact) : contacts_.erase(contact);
  }
  for (int r = 0; r < me_.size && !released(); ++r) {
    if (entries[i + r].revents != 0) watch(r);
  }
  if (entries[0].revents != 0) accept_visitors();
}

void Meeting::accept_visitors() {
  while (true) {
    int error = 0;
    Socket socket = accept_now(listener_, error);
    if (!socket.open() && error == 0) return;
    if (!socket.open()) {
      throw Error(
          fmt::format("rank {} cannot take a connection: {}; every pair of ranks has one: raise the limit "
                      "of open files with ulimit -n",
                      me_.rank, text_of(error)));
    }
    make_room();
    contacts_.push_back({.socket = std::move(socket),
                         .handshake = Handshake::called(me_),
                         .expires = Clock::now() + visit_time});
  }
}

// Where too many visitors are there, the one that has been silent for longest goes.
void Meeting::make_room() {
  const auto visits = [](const Contact& contact) { return contact.callee < 0; };
  const auto most = strangers + static_cast<size_t>(me_.size);
  if (static_cast<size_t>(std::ranges::count_if(contacts_, visits)) < most) return;
  auto gone = std::ranges::find_if(contacts_, [&](const Contact& c) { return visits(c) && !c.spoke; });
  if (gone == contacts_.end()) gone = std::ranges::find_if(contacts_, visits);
  turn_away(*gone, "came with too many others");
  contacts_.erase(gone);
}

bool Meeting::advance(Contact& contact, short ready) {
  try {
    if (contact.connecting) {
      if (ready == 0) return true;
      connected(contact);
    } else if ((ready & ~POLLOUT) != 0) {
      read(contact);
    }
    send(contact);
    if (contact.handshake.done() && contact.out.empty()) {
      Socket& link = links_[contact.handshake.peer()];
      if (!link.open()) link = std::move(contact.socket);
      return false;
    }
    if (Clock::now() > contact.expires) throw Error("was silent");
    return true;
  } catch (const Broken& e) {
    contact.callee < 0 ? turn_away(contact, e.what()) : call_failed(contact, e.what());
  } catch (const Error& e) {
    if (contact.callee >= 0) {
      const LinkAddress& address = callees_.at(contact.callee).address;
      throw Error(fmt::format("rank {} called rank {} at {} port {}, but what answers there {}", me_.rank,
                              contact.callee, address.host, address.port, e.what()));
    }
    turn_away(contact, e.what());
  }
  return false;
}

void Meeting::connected(Contact& contact) {
  if (const int error = error_of(contact.socket); error != 0) throw Broken(text_of(error));
  contact.connecting = false;
  contact.out = contact.handshake.opening();
}

void Meeting::read(Contact& contact) {
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

void Meeting::send(Contact& contact) {
  while (!contact.out.empty()) {
    const ssize_t sent =
        ::send(contact.socket.get(), contact.out.data(), contact.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) throw Broken(text_of(errno));
    contact.out.erase(contact.out.begin(), contact.out.begin() + sent);
  }
}

void Meeting::turn_away(const Contact& contact, const std::string& reason) {
  if (std::exchange(reported_visitor_, true)) return;
  fmt::print(stderr, "rank {} turned away a connection from {}, which {}; more of them are not reported\n",
             me_.rank, peer_address(contact.socket), reason);
}

// --- links that are there ---

void Meeting::tell_all_linked() {
  told_ = true;
  const char token = 0;
  for (int r = 0; r < (me_.rank == 0 ? me_.size : 1); ++r) {
    // One byte into an empty buffer; a peer that is gone shows where it is read from.
    if (links_[r].open()) static_cast<void>(::send(links_[r].get(), &token, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
}

// A link can be read: the peer has said that it has all its links, or has begun the run, or has ended.
void Meeting::watch(int peer) {
  const bool expected = !heard_[peer] && (me_.rank == 0 || peer == 0);
  char byte = 0;
  const ssize_t got = recv(links_[peer].get(), &byte, 1, MSG_DONTWAIT | (expected ? 0 : MSG_PEEK));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    throw Error(fmt::format("rank {} ended while the ranks were being connected (noticed by rank {})", peer,
                            me_.rank));
  }
  (expected ? heard_ : busy_)[peer] = true;
}

}  // namespace pptrain::comm

#include "parallel/comm/tcp/tcp_meeting.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_inbox.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
// A rank listens before it leaves its address: who is refused for so long calls one that has ended.
constexpr std::chrono::seconds refusal_time{10};
constexpr std::chrono::milliseconds longest_look{100};

std::string ranks_text(const std::vector<int>& list) {
  return fmt::format("rank{} {}", list.size() == 1 ? "" : "s", fmt::join(list, ", "));
}

}  // namespace

std::string address_key(int rank) {
  return fmt::format("address/{}", rank);
}

Meeting::Meeting(const RunIdentity& me, net::Socket listener, TcpStore& store, const StartPatience& patience)
    : me_(me),
      tree_(me.rank, me.size),
      store_(store),
      patience_(patience),
      contacts_(std::make_unique<TcpContacts>(
          me, std::move(listener),
          TcpContacts::Patience{.refused = refusal_time, .silent = std::chrono::milliseconds::max()},
          TcpContacts::Ends{
              .linked =
                  [this](int peer, net::Socket socket) {
                    if (!links_[peer].open()) links_[peer] = std::move(socket);
                  },
              .unreachable = [](int /*peer*/, const std::string& reason) { throw Error(reason); }})) {}

Met Meeting::run() {
  while (!done()) round();
  return {.me = me_,
          .contacts = std::move(contacts_),
          .addresses = std::move(addresses_),
          .links = std::move(links_)};
}

int Meeting::words_of(int peer) const {
  if (me_.rank > 0 && peer == tree_.parent) return 1;
  return std::ranges::find(tree_.children, peer) != tree_.children.end() ? 2 : 0;
}

int Meeting::heard(int peer) const {
  const auto found = heard_.find(peer);
  return found == heard_.end() ? 0 : found->second;
}

bool Meeting::has_parent_link() const {
  return me_.rank > 0 && links_.contains(tree_.parent);
}

bool Meeting::heard_from_children(int words) const {
  return std::ranges::all_of(tree_.children, [&](int child) { return heard(child) >= words; });
}

bool Meeting::all_have_come() const {
  return me_.rank == 0 ? heard_from_children(1) : heard(tree_.parent) > 0;
}

bool Meeting::done() const {
  return !addresses_.empty() && heard_from_children(2) && (me_.rank == 0 || told_parent_ == 2);
}

void Meeting::round() {
  patience_.check(ranks_text(awaited()));
  if (patience_.over()) throw Error(report());
  look_at_store();
  wait_for_events();
  go_on();
}

// Says what there is to say now.
void Meeting::go_on() {
  if (has_parent_link() && told_parent_ == 0 && heard_from_children(1)) tell(tree_.parent);
  if (!all_have_come()) return;
  if (addresses_.empty()) {
    for (const int child : tree_.children) tell(child);
    const std::vector<std::string> texts = store_.find_all(me_.size, address_key, patience_);
    for (int rank = 0; rank < me_.size; ++rank)
      addresses_.push_back(read_address(texts[static_cast<size_t>(rank)], rank));
  }
  if (told_parent_ == 1 && heard_from_children(2)) tell(tree_.parent);
}

// --- the store ---

void Meeting::look_at_store() {
  if (all_have_come() || Clock::now() < next_look_) return;
  if (const auto word = store_.find("failure", patience_)) throw PeerFailure(failure_text(*word));
  if (me_.rank > 0 && !has_parent_link()) {
    if (const auto text = store_.find(address_key(tree_.parent), patience_))
      contacts_->call(tree_.parent, read_address(*text, tree_.parent));
  }
  next_look_ = Clock::now() + look_again_;
  look_again_ = std::min(look_again_ * 2, longest_look);
}

// Neighbours in the tree that this rank has not heard of, or that have yet to hear of others.
std::vector<int> Meeting::awaited() const {
  std::vector<int> missing;
  for (const int child : tree_.children) {
    if (heard(child) == 0) missing.push_back(child);
  }
  if (me_.rank > 0 && (missing.empty() || !has_parent_link())) missing.push_back(tree_.parent);
  if (missing.empty()) missing = tree_.children;
  return missing;
}

// Who is missing when the time is over, and what is known of them.
std::string Meeting::report() {
  std::vector<int> absent;
  for (int rank = 0; rank < me_.size; ++rank) {
    if (rank != me_.rank && !links_.contains(rank) &&
        !store_.find(address_key(rank), patience_.for_last_words()))
      absent.push_back(rank);
  }
  std::string text = fmt::format("rank {} waited {:.1f} s for ", me_.rank, patience_.seconds());
  if (!absent.empty())
    return text + fmt::format("{}, which did not come to {}", ranks_text(absent), store_.name());
  std::vector<int> unreachable = awaited();
  std::erase_if(unreachable, [&](int rank) { return links_.contains(rank); });
  if (unreachable.empty())
    return text + ranks_text(awaited()) + ", which came but did not hear of all others";
  return text +
         fmt::format(
             "{}, which came but have no connection with this rank: a firewall between the hosts, or an "
             "address that does not lead there (PPTRAIN_HOST_ADDRESS)?",
             ranks_text(unreachable));
}

// --- calls, visitors, and links that are there ---

void Meeting::wait_for_events() {
  std::vector<pollfd> entries;
  contacts_->watch(entries);
  const size_t contacts = entries.size();
  std::vector<int> peers;
  for (const auto& [peer, link] : links_) {
    entries.push_back({busy_[peer] ? -1 : link.get(), POLLIN, 0});
    peers.push_back(peer);
  }
  const auto most = static_cast<int>(TcpContacts::look_every.count());
  if (poll(entries.data(), entries.size(), most) < 0 && errno != EINTR) {
    throw Error("poll failed: " + std::generic_category().message(errno));
  }
  contacts_->handle(std::span(entries).first(contacts));
  for (size_t i = 0; i < peers.size(); ++i) {
    if (entries[contacts + i].revents != 0) watch(peers[i]);
  }
}

void Meeting::tell(int peer) {
  const char token = 0;
  // One byte into an empty buffer; a peer that is gone shows where it is read from.
  static_cast<void>(::send(links_.at(peer).get(), &token, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  if (me_.rank > 0 && peer == tree_.parent) ++told_parent_;
}

// A link can be read: the peer says something, or has begun the run, or has ended.
void Meeting::watch(int peer) {
  const bool expected = heard(peer) < words_of(peer);
  char byte = 0;
  const ssize_t got = recv(links_.at(peer).get(), &byte, 1, MSG_DONTWAIT | (expected ? 0 : MSG_PEEK));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    throw Error(fmt::format("rank {} ended while the ranks were being connected (noticed by rank {})", peer,
                            me_.rank));
  }
  expected ? void(++heard_[peer]) : void(busy_[peer] = true);
}

}  // namespace pptrain::comm

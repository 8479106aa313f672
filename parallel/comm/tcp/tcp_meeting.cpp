#include "parallel/comm/tcp/tcp_meeting.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/base/threads.h"
#include "core/base/timing.h"
#include "parallel/comm/split.h"
#include "parallel/comm/tcp/tcp_inbox.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How long a rank waits for the others, and whether it was told to stop.
class StartPatience {
 public:
  StartPatience(int rank, const Rendezvous& rendezvous)
      : rank_(rank),
        timeout_(rendezvous.timeout),
        deadline_(Clock::now() + rendezvous.timeout),
        stopped_(rendezvous.stopped) {}

  int rank() const { return rank_; }
  double seconds() const { return in_seconds(timeout_); }
  bool over() const { return Clock::now() >= deadline_; }
  // Throws StoppedAtStart that names `awaited` if the rank was told to stop.
  void check(const std::string& awaited) const {
    if (!stopped_ || !stopped_()) return;
    throw StoppedAtStart(fmt::format("rank {} was told to stop while it waited for {}", rank_, awaited));
  }
  // For the last words of a rank whose time is over, or that has to stop.
  StartPatience for_last_words() const {
    StartPatience more = *this;
    more.deadline_ = Clock::now() + std::chrono::seconds(1);
    more.stopped_ = nullptr;
    return more;
  }

 private:
  int rank_;
  std::chrono::milliseconds timeout_;
  net::Deadline deadline_;
  std::function<bool()> stopped_;
};

constexpr std::chrono::milliseconds slice{20};
// A store that answers does so at once; its own patience is longer than any of ours.
constexpr std::chrono::hours store_patience{24};

std::string reason(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// c10d warns of a lost connection with the C++ frames of each try. What matters of it is an Error here.
void be_silent() {
  constexpr int error_level = 2;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr)
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, error_level);
}

// The result of `call`, which runs in a thread of its own: TCPStore's calls end neither with a signal nor
// with our time. A call that is given up keeps what it needs until it ends, or the process does.
template <typename Call>
auto patiently(Call call, const StartPatience& patience, const std::string& awaited) {
  using Result = std::invoke_result_t<Call>;
  std::packaged_task<Result()> task(std::move(call));
  std::future<Result> result = task.get_future();
  {
    const SignalBlock block;
    std::thread(std::move(task)).detach();
  }
  while (result.wait_for(slice) != std::future_status::ready) {
    patience.check(awaited);
    if (patience.over()) {
      throw Error(fmt::format("rank {} waited {:.1f} s for {}: no answer", patience.rank(),
                              patience.seconds(), awaited));
    }
  }
  try {
    return result.get();
  } catch (const std::exception& e) {
    throw Error(
        fmt::format("rank {} lost {}: {}; rank 0 has probably ended", patience.rank(), awaited, reason(e)));
  }
}

// True when the connection is there; otherwise why not.
bool answers(const std::string& address, int port, const StartPatience& patience, const std::string& awaited,
             std::string& why) {
  int error = 0;
  const net::Socket socket = net::start_connecting(address, port, error);
  // An address that swallows packets leaves time for the next one.
  const net::Deadline enough = Clock::now() + std::chrono::seconds(3);
  for (int ready = 0; socket.open() && ready <= 0;) {
    patience.check(awaited);
    if (patience.over() || Clock::now() > enough) {
      why = "no answer";
      return false;
    }
    pollfd entry{socket.get(), POLLOUT, 0};
    ready = poll(&entry, 1, static_cast<int>(slice.count()));
  }
  if (socket.open()) error = net::error_of(socket);
  why = net::error_text(error);
  return error == 0;
}

void wait_for_answer(const std::string& host, int port, const StartPatience& patience,
                     const std::string& awaited) {
  const std::vector<std::string> addresses = net::addresses_of(host);
  std::string why;
  while (true) {
    for (const std::string& address : addresses) {
      if (answers(address, port, patience, awaited, why)) return;
    }
    patience.check(awaited);
    if (patience.over()) {
      throw Error(fmt::format("rank {} waited {:.1f} s for {}: {}", patience.rank(), patience.seconds(),
                              awaited, why));
    }
    std::this_thread::sleep_for(slice);
  }
}

// PyTorch's TCPStore. Calls block for as long as the rank's patience lasts; then they end with Error, as they
// do if the store is gone. Any process that reaches the store may have set its values: they are to be
// checked.
class TcpStore {
 public:
  // Of rank 0, which serves it to those that come to its listener at this address.
  TcpStore(const std::string& prefix, const net::Address& at, std::string name, net::Socket listener,
           const StartPatience& patience)
      : prefix_(prefix), name_(std::move(name)), patience_(patience) {
    open(at, std::move(listener), "its own store, at " + name_);
  }
  // Of the others. awaited: who serves it.
  TcpStore(const std::string& prefix, const net::Address& at, std::string name, const std::string& awaited,
           const StartPatience& patience)
      : prefix_(prefix), name_(std::move(name)), patience_(patience) {
    const std::string server = fmt::format("{}, at {}", awaited, name_);
    wait_for_answer(at.host, at.port, patience, server);
    open(at, net::Socket(), server);
  }

  void set(const std::string& key, const std::string& value) const {
    ask([store = store_, name = prefix_ + "/" + key, value] {
      store->set(name, std::vector<uint8_t>(value.begin(), value.end()));
      return true;
    });
  }

  // The values of key(0), key(1), ..., which are there, in one answer.
  std::vector<std::string> find_all(int count, std::string (*key)(int)) const {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(prefix_ + "/" + key(i));
    return ask([store = store_, keys = std::move(keys)] {
      std::vector<std::string> values;
      for (const std::vector<uint8_t>& value : store->multiGet(keys))
        values.emplace_back(value.begin(), value.end());
      return values;
    });
  }

  // Nothing if the key is not there yet.
  std::optional<std::string> find(const std::string& key) const {
    return ask([store = store_, name = prefix_ + "/" + key]() -> std::optional<std::string> {
      if (!store->check({name})) return std::nullopt;
      const std::vector<uint8_t> value = store->get(name);
      return std::string(value.begin(), value.end());
    });
  }

  // The same store with the patience for last words.
  TcpStore for_last_words() const {
    TcpStore store = *this;
    store.patience_ = patience_.for_last_words();
    return store;
  }

  // "HOST port PORT (MASTER_ADDR, MASTER_PORT)"
  const std::string& name() const { return name_; }

 private:
  void open(const net::Address& at, net::Socket listener, const std::string& awaited) {
    be_silent();
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(at.port);
    options.isServer = listener.open();
    options.waitWorkers = false;
    options.timeout = store_patience;
    if (options.isServer) options.masterListenFd = listener.release();
    store_ = patiently([host = at.host, options] { return std::make_shared<c10d::TCPStore>(host, options); },
                       patience_, awaited);
  }

  template <typename Call>
  std::invoke_result_t<Call> ask(Call call) const {
    return patiently(std::move(call), patience_, "the meeting point " + name_);
  }

  std::string prefix_;
  std::string name_;
  StartPatience patience_;
  std::shared_ptr<c10d::TCPStore> store_;
};

// A rank listens before it leaves its address: one that refuses for so long has ended.
constexpr std::chrono::seconds refusal_time{10};
constexpr std::chrono::milliseconds longest_look{100};

std::string ranks_text(const std::vector<int>& list) {
  return fmt::format("rank{} {}", list.size() == 1 ? "" : "s", fmt::join(list, ", "));
}

// Brings together ranks that have left their addresses in the store. One loop looks after everything at once:
// the store, calls, visitors, and the links that are there already.
class Meeting {
 public:
  // listener: where other ranks call.
  Meeting(const RunIdentity& me, net::Socket listener, const TcpStore& store, const StartPatience& patience)
      : me_(me),
        tree_(me.rank, me.size),
        store_(store),
        patience_(patience),
        contacts_(std::make_unique<TcpContacts>(
            me, std::move(listener),
            TcpContacts::Options{
                .refused = refusal_time,
                .silent = std::chrono::milliseconds::max(),
                .linked =
                    [this](int peer, net::Socket socket) {
                      if (!links_[peer].open()) links_[peer] = std::move(socket);
                    },
                .unreachable = [](int /*peer*/, const std::string& reason) { throw Error(reason); }})) {}

  // Returns on every rank after all have come and those below it in the tree have read the store, which may
  // go when it returns on rank 0. Throws Error that names the ranks that are missing or that ended meanwhile,
  // PeerFailure with what another rank left in the store as its end, StoppedAtStart.
  Met run() {
    while (!done()) round();
    return {.me = me_,
            .contacts = std::move(contacts_),
            .addresses = std::move(addresses_),
            .links = std::move(links_)};
  }

 private:
  // What is said on a link, a byte each: upwards that all below are there, then that they have read the
  // addresses; downwards that all have come.
  int words_of(int peer) const {
    if (me_.rank > 0 && peer == tree_.parent) return 1;
    return std::ranges::find(tree_.children, peer) != tree_.children.end() ? 2 : 0;
  }

  int heard(int peer) const {
    const auto found = heard_.find(peer);
    return found == heard_.end() ? 0 : found->second;
  }

  bool has_parent_link() const { return me_.rank > 0 && links_.contains(tree_.parent); }

  bool heard_from_children(int words) const {
    return std::ranges::all_of(tree_.children, [&](int child) { return heard(child) >= words; });
  }

  bool all_have_come() const { return me_.rank == 0 ? heard_from_children(1) : heard(tree_.parent) > 0; }

  bool done() const {
    return !addresses_.empty() && heard_from_children(2) && (me_.rank == 0 || told_parent_ == 2);
  }

  // Neighbours in the tree that this rank has not heard of, or that have yet to hear of others.
  std::vector<int> awaited() const {
    std::vector<int> missing;
    for (const int child : tree_.children) {
      if (heard(child) == 0) missing.push_back(child);
    }
    if (me_.rank > 0 && (missing.empty() || !has_parent_link())) missing.push_back(tree_.parent);
    if (missing.empty()) missing = tree_.children;
    return missing;
  }

  // The ranks that are missing when the time is over, and what is known of them.
  std::string report() {
    const TcpStore store = store_.for_last_words();
    std::vector<int> absent;
    for (int rank = 0; rank < me_.size; ++rank) {
      if (rank != me_.rank && !links_.contains(rank) && !store.find(address_key(rank)))
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

  void round() {
    patience_.check(ranks_text(awaited()));
    if (patience_.over()) throw Error(report());
    look_at_store();
    wait_for_events();
    go_on();
  }

  // Says what there is to say now.
  void go_on() {
    if (has_parent_link() && told_parent_ == 0 && heard_from_children(1)) tell(tree_.parent);
    if (!all_have_come()) return;
    if (addresses_.empty()) {
      for (const int child : tree_.children) tell(child);
      const std::vector<std::string> texts = store_.find_all(me_.size, address_key);
      for (int rank = 0; rank < me_.size; ++rank)
        addresses_.push_back(read_address(texts[static_cast<size_t>(rank)], rank));
    }
    if (told_parent_ == 1 && heard_from_children(2)) tell(tree_.parent);
  }

  void look_at_store() {
    if (all_have_come() || Clock::now() < next_look_) return;
    if (const auto word = store_.find("failure")) throw PeerFailure(failure_text(*word));
    if (me_.rank > 0 && !has_parent_link()) {
      if (const auto text = store_.find(address_key(tree_.parent)))
        contacts_->call(tree_.parent, {read_address(*text, tree_.parent)});
    }
    next_look_ = Clock::now() + look_again_;
    look_again_ = std::min(look_again_ * 2, longest_look);
  }

  void wait_for_events() {
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
      throw Error("poll failed: " + net::error_text(errno));
    }
    contacts_->handle(std::span(entries).first(contacts));
    for (size_t i = 0; i < peers.size(); ++i) {
      if (entries[contacts + i].revents != 0) watch(peers[i]);
    }
  }

  // A link can be read: the peer says something, or has begun the run, or has ended.
  void watch(int peer) {
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

  void tell(int peer) {
    const char token = 0;
    // One byte into an empty buffer; a peer that is gone is noticed by the next read.
    static_cast<void>(::send(links_.at(peer).get(), &token, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (me_.rank > 0 && peer == tree_.parent) ++told_parent_;
  }

  const RunIdentity me_;
  const Tree tree_;
  const TcpStore& store_;
  const StartPatience& patience_;
  std::unique_ptr<TcpContacts> contacts_;

  std::map<int, net::Socket> links_;  // also of ranks that are done here, and call this one
  std::map<int, int> heard_;          // words of each neighbour
  int told_parent_ = 0;               // words
  std::vector<net::Address> addresses_;
  std::map<int, bool> busy_;  // bytes of the run have come already
  net::Deadline next_look_{};
  std::chrono::milliseconds look_again_{5};
};

// In the place of a key if the ranks have a secret.
constexpr const char* secret_word = "secret";
constexpr size_t hex_digest = 64;

std::string wait_for(const TcpStore& store, const std::string& key, const StartPatience& patience) {
  std::chrono::milliseconds nap{5};
  while (true) {
    if (auto value = store.find(key)) return *value;
    if (const auto word = store.find("failure")) throw PeerFailure(failure_text(*word));
    patience.check("rank 0");
    if (patience.over()) {
      throw Error(fmt::format("rank {} waited {:.1f} s for rank 0, which did not come to {}", patience.rank(),
                              patience.seconds(), store.name()));
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::milliseconds(100));
  }
}

// Rank 0 gives the run a name, and a key if the user gave no secret. A rank with a secret never takes a key
// from the store: any process that reaches the store could have put it there.
RunIdentity agree_on_run(int rank, int size, const Rendezvous& rendezvous, const TcpStore& store,
                         const StartPatience& patience) {
  const bool secret = !rendezvous.secret.empty();
  if (rank == 0) {
    RunIdentity me{.key = secret ? rendezvous.secret : to_hex(random_bytes()),
                   .run = to_hex(random_bytes()),
                   .rank = rank,
                   .size = size};
    store.set("run", me.run + " " + (secret ? secret_word : me.key));
    return me;
  }
  const std::string text = wait_for(store, "run", patience);
  if (text.size() < hex_digest + 1 || text.size() > 2 * hex_digest + 1) {
    throw Error(fmt::format("rank {} found no pptrain at {}, but something else", rank, store.name()));
  }
  const std::string key = text.substr(hex_digest + 1);
  if (secret != (key == secret_word)) {
    throw Error(fmt::format("rank {} was started {} PPTRAIN_SECRET, rank 0 {} it: give it to all ranks", rank,
                            secret ? "with" : "without", secret ? "without" : "with"));
  }
  return {
      .key = secret ? rendezvous.secret : key, .run = text.substr(0, hex_digest), .rank = rank, .size = size};
}

net::Socket listen_for_ranks(const std::string& address, int rank) {
  int error = 0;
  net::Socket listener = net::listen_at(address, 0, error);
  if (listener.open()) return listener;
  throw Error(
      fmt::format("rank {} cannot listen at {} for other ranks: {}", rank, address, net::error_text(error)));
}

std::string meeting_point(const Rendezvous& rendezvous) {
  return fmt::format("{} port {} (MASTER_ADDR, MASTER_PORT)", rendezvous.host, rendezvous.port);
}

// The ranks' store at the meeting point, which rank 0 serves.
TcpStore store_at_meeting_point(int rank, const Rendezvous& rendezvous, const std::string& host,
                                const StartPatience& patience) {
  const std::string name = meeting_point(rendezvous);
  if (rank > 0)
    return {
        rendezvous.prefix, {host, rendezvous.port}, name, "rank 0, which serves the meeting point", patience};
  std::string address = host;
  net::Socket door = listen_at_meeting_point(rendezvous, host, address);
  return {rendezvous.prefix, {address, rendezvous.port}, name, std::move(door), patience};
}

// The ranks' store if a launcher serves one. The launcher's store may outlive these processes and hold what
// earlier ones left, whose ranks were others'. So rank 0 serves a store of its own, and leaves its address in
// the launcher's. An address that an earlier rank 0 left refuses; then the others look again.
TcpStore store_by_launcher(int rank, const Rendezvous& rendezvous, const std::string& host,
                           const StartPatience& patience) {
  constexpr const char* key = "rank0";
  constexpr std::chrono::milliseconds nap{20};
  const TcpStore launchers(rendezvous.prefix, {host, rendezvous.port}, meeting_point(rendezvous),
                           "the launcher's store", patience);
  if (rank == 0) {
    const std::string address = own_address(rendezvous, host);
    net::Socket door = listen_for_ranks(address, rank);
    const net::Address at{address, net::port_of(door)};
    TcpStore store(rendezvous.prefix, at, to_text(at), std::move(door), patience);
    launchers.set(key, to_text(at));
    return store;
  }
  for (std::string why;; std::this_thread::sleep_for(nap)) {
    const net::Address at = read_address(wait_for(launchers, key, patience), 0);
    if (answers(at.host, at.port, patience, "rank 0", why))
      return {rendezvous.prefix, at, to_text(at), "rank 0", patience};
    if (patience.over()) {
      throw Error(fmt::format("rank {} waited {:.1f} s for rank 0, whose address in {} is {}: {}", rank,
                              patience.seconds(), launchers.name(), to_text(at), why));
    }
  }
}

Met connect_all(int rank, int size, const Rendezvous& rendezvous, const std::string& host,
                const TcpStore& store, const StartPatience& patience) {
  const RunIdentity me = agree_on_run(rank, size, rendezvous, store, patience);
  const std::string address = own_address(rendezvous, host);
  net::Socket listener = listen_for_ranks(address, rank);
  store.set(address_key(rank), to_text({address, net::port_of(listener)}));
  return Meeting(me, std::move(listener), store, patience).run();
}

// Others look for this word while they wait, so that all end with the same one.
void leave_word(const TcpStore& store, const std::string& word, bool serves) {
  // Longer than others go without a look at the store.
  constexpr std::chrono::milliseconds time_to_read{300};
  try {
    store.for_last_words().set("failure", failure_text(word));
    if (serves) std::this_thread::sleep_for(time_to_read);
  } catch (const Error&) {
    // The store has gone, and the others will see that.
  }
}

// What another rank left as its end, if one has.
std::optional<std::string> word_of_others(const TcpStore& store) {
  try {
    return store.for_last_words().find("failure");
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string address_key(int rank) {
  return fmt::format("address/{}", rank);
}

Met meet(int rank, int size, const Rendezvous& rendezvous) {
  if (size == 1) return {};
  const StartPatience patience(rank, rendezvous);
  const std::string host = meeting_host(rendezvous);
  const bool serves = rank == 0;
  const auto open = rendezvous.served_by_launcher ? store_by_launcher : store_at_meeting_point;
  const TcpStore store = open(rank, rendezvous, host, patience);
  try {
    return connect_all(rank, size, rendezvous, host, store, patience);
  } catch (const PeerFailure&) {
    throw;
  } catch (const StoppedAtStart& e) {
    leave_word(store, e.what(), serves);
    throw;
  } catch (const Error& e) {
    if (const auto word = word_of_others(store)) throw PeerFailure(failure_text(*word));
    leave_word(store, e.what(), serves);
    throw;
  }
}

}  // namespace pptrain::comm

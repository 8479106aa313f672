#include "parallel/comm/tcp/tcp_rendezvous.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_address.h"
#include "parallel/comm/tcp/tcp_handshake.h"
#include "parallel/comm/tcp/tcp_inbox.h"
#include "parallel/comm/tcp/tcp_store.h"

namespace pptrain::comm {
namespace {

// In the place of a key where the ranks have a secret.
constexpr const char* secret_word = "secret";
constexpr size_t hex_digest = 64;

std::string wait_for(TcpStore& store, const std::string& key, const StartPatience& patience) {
  std::chrono::milliseconds nap{5};
  while (true) {
    if (auto value = store.find(key, patience)) return *value;
    if (const auto word = store.find("failure", patience)) throw PeerFailure(failure_text(*word));
    patience.check("rank 0");
    if (patience.over()) {
      throw Error(fmt::format("rank {} waited {:.1f} s for rank 0, which did not come to {}", patience.rank(),
                              patience.seconds(), store.name()));
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::milliseconds(100));
  }
}

// Rank 0 gives the run a name, and a key where the user gave no secret. A rank with a secret never takes a
// key from the store: whoever reaches the store could have put it there.
RunIdentity agree_on_run(int rank, int size, const Rendezvous& rendezvous, TcpStore& store,
                         const StartPatience& patience) {
  const bool secret = !rendezvous.secret.empty();
  if (rank == 0) {
    RunIdentity me{.key = secret ? rendezvous.secret : to_hex(random_bytes()),
                   .run = to_hex(random_bytes()),
                   .rank = rank,
                   .size = size};
    store.set("run", me.run + " " + (secret ? secret_word : me.key), patience);
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
  throw Error(fmt::format("rank {} cannot listen at {} for other ranks: {}", rank, address,
                          std::generic_category().message(error)));
}

Met connect_all(int rank, int size, const Rendezvous& rendezvous, const std::string& host, TcpStore& store,
                const StartPatience& patience) {
  const RunIdentity me = agree_on_run(rank, size, rendezvous, store, patience);
  const std::string address = own_address(rendezvous, host);
  net::Socket listener = listen_for_ranks(address, rank);
  store.set(address_key(rank), to_text({address, net::port_of(listener)}), patience);
  return Meeting(me, std::move(listener), store, patience).run();
}

// Others look for this word while they wait, so that all end with the same one.
void leave_word(TcpStore& store, const std::string& word, const StartPatience& patience, bool serves) {
  // Longer than others go without a look at the store.
  constexpr std::chrono::milliseconds time_to_read{300};
  try {
    store.set("failure", failure_text(word), patience.for_last_words());
    if (serves) std::this_thread::sleep_for(time_to_read);
  } catch (const Error&) {
    // The store has gone, and the others will see that.
  }
}

// What another rank left as its end, where one has.
std::optional<std::string> word_of_others(TcpStore& store, const StartPatience& patience) {
  try {
    return store.find("failure", patience.for_last_words());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

Met meet(int rank, int size, const Rendezvous& rendezvous) {
  if (size == 1) return {};
  const StartPatience patience(rank, rendezvous);
  const std::string host = meeting_host(rendezvous);
  const bool serves = rank == 0 && !rendezvous.served_by_launcher;
  std::string meeting_address = host;
  net::Socket door = serves ? listen_at_meeting_point(rendezvous, host, meeting_address) : net::Socket();
  TcpStore store(rendezvous, meeting_address, std::move(door), patience);
  try {
    return connect_all(rank, size, rendezvous, host, store, patience);
  } catch (const PeerFailure&) {
    throw;
  } catch (const StartStopped& e) {
    leave_word(store, e.what(), patience, serves);
    throw;
  } catch (const Error& e) {
    if (const auto word = word_of_others(store, patience)) throw PeerFailure(failure_text(*word));
    leave_word(store, e.what(), patience, serves);
    throw;
  }
}

}  // namespace pptrain::comm

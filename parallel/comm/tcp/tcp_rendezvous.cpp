#include "parallel/comm/tcp/tcp_rendezvous.h"

#include <c10/util/Exception.h>
#include <spdlog/fmt/fmt.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <memory>
#include <random>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds hello_time{10};

// First bytes on every connection. The secret, left in the store by rank 0, keeps strangers out.
struct Hello {
  uint64_t secret;
  int64_t rank;
};

std::string reason(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

class Store {
 public:
  Store(int rank, const Rendezvous& rendezvous) : prefix_(rendezvous.prefix) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(rendezvous.port);
    options.isServer = rank == 0 && !rendezvous.served_by_launcher;
    options.waitWorkers = false;
    options.timeout = rendezvous.timeout;
    try {
      store_ = std::make_unique<c10d::TCPStore>(rendezvous.host, options);
    } catch (const std::exception& e) {
      throw Error(fmt::format("rank {} cannot {} the meeting point {} port {} (MASTER_ADDR, MASTER_PORT): {}",
                              rank, options.isServer ? "open" : "reach", rendezvous.host, rendezvous.port,
                              reason(e)));
    }
  }

  void set(const std::string& key, const std::string& value) {
    store_->set(prefix_ + "/" + key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  // Waits for the key until the rendezvous' timeout.
  std::string get(const std::string& key) {
    const std::vector<uint8_t> value = store_->get(prefix_ + "/" + key);
    return {value.begin(), value.end()};
  }

 private:
  std::string prefix_;
  std::unique_ptr<c10d::TCPStore> store_;
};

uint64_t agree_on_secret(Store& store, int rank) {
  if (rank == 0) {
    std::random_device random;
    const uint64_t secret = (uint64_t{random()} << 32) | random();
    store.set("secret", std::to_string(secret));
    return secret;
  }
  return std::stoull(store.get("secret"));
}

std::string who(int rank) {
  return fmt::format("rank {}", rank);
}

// `text`: "address port"; without an address the rank lives on the host of the meeting point.
Socket connect_to(int peer, const std::string& text, const Rendezvous& rendezvous, const Hello& hello,
                  Deadline deadline) {
  const size_t space = text.find(' ');
  const std::string address = text.substr(0, space);
  try {
    Socket link = connect_until(address.empty() ? rendezvous.host : address,
                                std::stoi(text.substr(space + 1)), deadline);
    send_all(link, &hello, sizeof(hello), deadline, who(peer));
    return link;
  } catch (const Error& e) {
    throw Error(fmt::format("rank {} cannot reach rank {}: {}", hello.rank, peer, e.what()));
  }
}

void accept_higher(const Socket& listener, uint64_t secret, int rank, std::vector<Socket>& links,
                   Deadline deadline) {
  const auto missing = [&] {
    std::string ranks;
    for (size_t r = rank + 1; r < links.size(); ++r) {
      if (!links[r].open()) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    }
    return ranks;
  };
  while (!missing().empty()) {
    Socket link = accept_until(listener, deadline);
    if (!link.open())
      throw Error(fmt::format("rank {} waited in vain for a connection of rank {}", rank, missing()));
    Hello hello{};
    try {
      receive_all(link, &hello, sizeof(hello), std::min(deadline, Clock::now() + hello_time), "a visitor");
    } catch (const Error&) {
      continue;  // not one of ours
    }
    const bool ours =
        hello.secret == secret && hello.rank > rank && hello.rank < static_cast<int64_t>(links.size());
    if (ours && !links[hello.rank].open()) links[hello.rank] = std::move(link);
  }
}

// Returns on every rank after all have all their links: only then may rank 0's store go.
void meet_at_rank_0(int rank, const std::vector<Socket>& links, Deadline deadline) {
  char token = 0;
  if (rank > 0) {
    send_all(links[0], &token, 1, deadline, who(0));
    receive_all(links[0], &token, 1, deadline, who(0));
    return;
  }
  for (size_t r = 1; r < links.size(); ++r)
    receive_all(links[r], &token, 1, deadline, who(static_cast<int>(r)));
  for (size_t r = 1; r < links.size(); ++r) send_all(links[r], &token, 1, deadline, who(static_cast<int>(r)));
}

}  // namespace

std::vector<Socket> meet(int rank, int size, const Rendezvous& rendezvous) {
  std::vector<Socket> links(size);
  if (size == 1) return links;
  const Deadline deadline = Clock::now() + rendezvous.timeout;
  Store store(rank, rendezvous);
  const Socket listener = listen_anywhere(size);
  int awaited = 0;
  try {
    const uint64_t secret = agree_on_secret(store, rank);
    store.set(fmt::format("address/{}", rank),
              fmt::format("{} {}", address_towards(rendezvous.host), port_of(listener)));
    const Hello hello{secret, rank};
    for (; awaited < rank; ++awaited) {
      const std::string address = store.get(fmt::format("address/{}", awaited));
      links[awaited] = connect_to(awaited, address, rendezvous, hello, deadline);
    }
    accept_higher(listener, secret, rank, links, deadline);
  } catch (const c10::Error& e) {
    throw Error(fmt::format("rank {} waited at {} port {} for rank {}, which did not come: {}", rank,
                            rendezvous.host, rendezvous.port, awaited, reason(e)));
  }
  meet_at_rank_0(rank, links, deadline);
  for (const Socket& link : links) {
    if (link.open()) make_link(link);
  }
  return links;
}

}  // namespace pptrain::comm

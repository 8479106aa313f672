#include "parallel/comm/tcp/tcp_rendezvous.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <future>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/signal_block.h"
#include "core/net/address.h"

namespace pptrain::comm {
namespace {

// A host that can only be the one that it is said on.
bool means_this_host(const std::string& host) {
  return host == "localhost" || host == "ip6-localhost" || net::is_loopback(host);
}

bool all_loopback(const std::vector<std::string>& addresses) {
  return std::ranges::all_of(addresses, net::is_loopback);
}

}  // namespace

std::string meeting_host(const Rendezvous& rendezvous) {
  if (rendezvous.served_by_launcher || rendezvous.one_host) return rendezvous.host;
  if (!all_loopback(net::addresses_of(rendezvous.host))) return rendezvous.host;
  if (!rendezvous.host_address.empty()) return net::host_address(rendezvous.host_address);
  return means_this_host(rendezvous.host) ? rendezvous.host : net::address_for_others();
}

net::Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host,
                                    std::string& address) {
  std::vector<std::string> candidates = net::addresses_of(host);
  // A name with addresses of both kinds: the others come to the one that is not this host's alone.
  std::stable_partition(candidates.begin(), candidates.end(),
                        [](const std::string& a) { return !net::is_loopback(a); });
  if (!rendezvous.host_address.empty()) candidates.push_back(net::host_address(rendezvous.host_address));
  for (const std::string& candidate : candidates) {
    int error = 0;
    net::Socket socket = net::listen_at(candidate, rendezvous.port, error);
    address = candidate;
    if (socket.open()) return socket;
    if (error == EADDRNOTAVAIL) continue;
    throw Error(
        fmt::format("rank 0 cannot listen at {} port {} (MASTER_ADDR, MASTER_PORT): {}{}", candidate,
                    rendezvous.port, std::generic_category().message(error),
                    error == EADDRINUSE ? "; another run may be using it: choose another MASTER_PORT" : ""));
  }
  throw Error(fmt::format(
      "rank 0 serves the meeting point, but MASTER_ADDR \"{}\" ({}) is no address of its host: start rank 0 "
      "there, or set PPTRAIN_HOST_ADDRESS to the address or interface of its host that MASTER_ADDR leads to",
      rendezvous.host, candidates.front()));
}

std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host) {
  if (!rendezvous.host_address.empty()) return net::host_address(rendezvous.host_address);
  const bool here = rendezvous.one_host || means_this_host(meeting_host);
  if (here) return net::can_listen(net::loopback) ? net::loopback : "::1";
  const std::string address = net::address_towards(meeting_host);
  if (address.empty()) throw Error(fmt::format("no route to host \"{}\"", meeting_host));
  return net::is_loopback(address) ? net::address_for_others() : address;
}

namespace {

using Clock = std::chrono::steady_clock;
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
  why = std::generic_category().message(error);
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

}  // namespace

void StartPatience::check(const std::string& awaited) const {
  if (!stopped_ || !stopped_()) return;
  throw StartStopped(fmt::format("rank {} was told to stop while it waited for {}", rank_, awaited));
}

StartPatience StartPatience::for_last_words() const {
  StartPatience more = *this;
  more.deadline_ = Clock::now() + std::chrono::seconds(1);
  more.stopped_ = nullptr;
  return more;
}

TcpStore::TcpStore(const Rendezvous& rendezvous, const std::string& host, net::Socket listener,
                   const StartPatience& patience)
    : prefix_(rendezvous.prefix),
      name_(fmt::format("{} port {} (MASTER_ADDR, MASTER_PORT)", rendezvous.host, rendezvous.port)),
      patience_(patience) {
  be_silent();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = listener.open();
  options.waitWorkers = false;
  options.timeout = store_patience;
  const std::string awaited = fmt::format(
      "{}, at {}",
      rendezvous.served_by_launcher ? "the launcher's store" : "rank 0, which serves the meeting point",
      name_);
  if (options.isServer) {
    options.masterListenFd = listener.release();
  } else {
    wait_for_answer(host, rendezvous.port, patience, awaited);
  }
  store_ = patiently([host, options] { return std::make_shared<c10d::TCPStore>(host, options); }, patience,
                     awaited);
}

void TcpStore::set(const std::string& key, const std::string& value) const {
  patiently(
      [store = store_, name = prefix_ + "/" + key, value] {
        store->set(name, std::vector<uint8_t>(value.begin(), value.end()));
        return true;
      },
      patience_, "the meeting point " + name_);
}

std::vector<std::string> TcpStore::find_all(int count, std::string (*key)(int)) const {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(prefix_ + "/" + key(i));
  return patiently(
      [store = store_, keys = std::move(keys)] {
        std::vector<std::string> values;
        for (const std::vector<uint8_t>& value : store->multiGet(keys))
          values.emplace_back(value.begin(), value.end());
        return values;
      },
      patience_, "the meeting point " + name_);
}

std::optional<std::string> TcpStore::find(const std::string& key) const {
  return patiently(
      [store = store_, name = prefix_ + "/" + key]() -> std::optional<std::string> {
        if (!store->check({name})) return std::nullopt;
        const std::vector<uint8_t> value = store->get(name);
        return std::string(value.begin(), value.end());
      },
      patience_, "the meeting point " + name_);
}

TcpStore TcpStore::for_last_words() const {
  TcpStore store = *this;
  store.patience_ = patience_.for_last_words();
  return store;
}

}  // namespace pptrain::comm

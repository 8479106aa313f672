#include "parallel/comm/tcp/tcp_store.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/base/signal_block.h"
#include "core/net/address.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds slice{20};
// A store that answers does so at once; its own patience is longer than any of ours.
constexpr std::chrono::hours never{24};

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
      name_(fmt::format("{} port {} (MASTER_ADDR, MASTER_PORT)", rendezvous.host, rendezvous.port)) {
  be_silent();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rendezvous.port);
  options.isServer = listener.open();
  options.waitWorkers = false;
  options.timeout = never;
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

void TcpStore::set(const std::string& key, const std::string& value, const StartPatience& patience) {
  patiently(
      [store = store_, name = prefix_ + "/" + key, value] {
        store->set(name, std::vector<uint8_t>(value.begin(), value.end()));
        return true;
      },
      patience, "the meeting point " + name_);
}

std::vector<std::string> TcpStore::find_all(int count, std::string (*key)(int),
                                            const StartPatience& patience) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(prefix_ + "/" + key(i));
  return patiently(
      [store = store_, keys = std::move(keys)] {
        std::vector<std::string> values;
        for (const std::vector<uint8_t>& value : store->multiGet(keys))
          values.emplace_back(value.begin(), value.end());
        return values;
      },
      patience, "the meeting point " + name_);
}

std::optional<std::string> TcpStore::find(const std::string& key, const StartPatience& patience) {
  return patiently(
      [store = store_, name = prefix_ + "/" + key]() -> std::optional<std::string> {
        if (!store->check({name})) return std::nullopt;
        const std::vector<uint8_t> value = store->get(name);
        return std::string(value.begin(), value.end());
      },
      patience, "the meeting point " + name_);
}

}  // namespace pptrain::comm

// The meeting point of ranks that know only one address: where it is, and PyTorch's TCPStore there, asked in
// a way that can be given up at any time. Sockets are bound to the addresses found here alone.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/net/socket.h"

namespace c10d {
class TCPStore;
}

namespace pptrain::comm {

// A key-value store at a fixed address, spoken to in the protocol of PyTorch's TCPStore, where ranks leave
// their addresses for each other.
struct Rendezvous {
  std::string host;
  int port = 0;
  bool served_by_launcher = false;  // torchrun's agent has the store; otherwise rank 0 serves it
  std::string prefix =
      "pptrain";               // of all keys: apart from other users of the store and from earlier attempts
  bool one_host = false;       // the launcher says that all ranks are on one host
  std::string host_address{};  // address or interface of this host that others shall use; "": found out
  std::string secret{};        // known to all ranks and to nobody else; "": a key is left in the store
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for all ranks to have come
  std::function<bool()> stopped = [] { return false; };         // asked while ranks are waited for
};

// Rendezvous::stopped said so.
class StartStopped : public Error {
 public:
  using Error::Error;
};

// Where this rank finds the meeting point: the name that rendezvous.host is, except where rank 0 serves it
// and that name means "this host" here, as Debian's /etc/hosts has it, though ranks of other hosts must reach
// it.
std::string meeting_host(const Rendezvous& rendezvous);
// Rank 0's socket there: bound to the address that the other ranks come to. Throws Error that says what to
// change where that is no address of this host, or the port is taken.
net::Socket listen_at_meeting_point(const Rendezvous& rendezvous, const std::string& host,
                                    std::string& address);
// Where the other ranks reach this one: rendezvous.host_address (an address, a name or an interface) where it
// is given, loopback where all ranks are on one host, otherwise the address on the way to the meeting point.
// Throws UsageError for a host_address that is none of this host's.
std::string own_address(const Rendezvous& rendezvous, const std::string& meeting_host);

// How long a rank waits for the others, and whether it was told to stop.
class StartPatience {
 public:
  StartPatience(int rank, const Rendezvous& rendezvous)
      : rank_(rank),
        timeout_(rendezvous.timeout),
        deadline_(std::chrono::steady_clock::now() + rendezvous.timeout),
        stopped_(rendezvous.stopped) {}

  int rank() const { return rank_; }
  double seconds() const { return std::chrono::duration<double>(timeout_).count(); }
  bool over() const { return std::chrono::steady_clock::now() >= deadline_; }
  // Throws StartStopped that names `awaited` where the rank was told to stop.
  void check(const std::string& awaited) const;
  // For the last words of a rank whose time is over, or that has to stop.
  StartPatience for_last_words() const;

 private:
  int rank_;
  std::chrono::milliseconds timeout_;
  net::Deadline deadline_;
  std::function<bool()> stopped_;
};

// PyTorch's TCPStore. Calls block for as long as the rank's patience lasts; then they end with Error, and so
// they do where the store is gone. Any process that reaches the store may have set its values: they are to be
// checked.
class TcpStore {
 public:
  // host: meeting_host(). listener: rank 0's, where it serves the store; closed elsewhere.
  TcpStore(const Rendezvous& rendezvous, const std::string& host, net::Socket listener,
           const StartPatience& patience);

  void set(const std::string& key, const std::string& value) const;
  // The values of key(0), key(1), ..., which are there, in one answer.
  std::vector<std::string> find_all(int count, std::string (*key)(int)) const;
  // Nothing where the key is not there yet.
  std::optional<std::string> find(const std::string& key) const;
  // The same store with the patience for last words.
  TcpStore for_last_words() const;

  // "HOST port PORT (MASTER_ADDR, MASTER_PORT)"
  const std::string& name() const { return name_; }

 private:
  std::string prefix_;
  std::string name_;
  StartPatience patience_;
  std::shared_ptr<c10d::TCPStore> store_;
};

}  // namespace pptrain::comm

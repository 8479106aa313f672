// How two ranks of a run come to be connected: calls, visitors, and the handshakes of both.
//
// One thread looks after all contacts at once, in its own poll(): whoever is slow, silent or a stranger holds
// up no other. A visitor has ten seconds to prove that it is of this run.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_handshake.h"

namespace pptrain::comm {

// What a rank leaves in the store: "10.0.0.5 41234".
struct LinkAddress {
  std::string host;
  int port = 0;
};
std::string to_text(const LinkAddress& address);
// Throws Error for what no rank would leave.
LinkAddress read_address(const std::string& text, int rank);

class TcpContacts {
 public:
  struct Patience {
    std::chrono::milliseconds refused;  // so long a rank that refuses is called again
    std::chrono::milliseconds silent;   // so long a call may take
  };
  // Called by handle() and call(); they may throw.
  struct Ends {
    std::function<void(int peer, net::Socket socket)> linked;
    // The call has failed for good. reason: a sentence that names both ranks and the address.
    std::function<void(int peer, const std::string& reason)> unreachable;
  };

  // listener: where others call; closed: none do.
  TcpContacts(RunIdentity me, net::Socket listener, Patience patience, Ends ends);

  // Nothing where the call is under way.
  void call(int peer, const LinkAddress& address);
  // Visitors are heard no more, and those that are there sent away.
  void close_door();
  // No call is under way.
  bool idle() const { return callees_.empty(); }

  // Adds what poll() is to wait for, and at most this long.
  void watch(std::vector<pollfd>& entries) const;
  static constexpr std::chrono::milliseconds look_every{20};  // while there are contacts
  bool has_contacts() const { return !contacts_.empty() || !callees_.empty(); }
  // `entries`: those that watch() added. Throws Error where the system gives no more sockets.
  void handle(std::span<const pollfd> entries);

  // From now on another one looks after the contacts; those that are there go on.
  void hand_over(Patience patience, Ends ends);

 private:
  // A connection whose handshake is under way.
  struct Contact {
    net::Socket socket;
    Handshake handshake;
    int callee = -1;  // the rank that is called; -1: a visitor
    net::Deadline expires = net::Deadline::max();
    bool connecting = false;
    bool spoke = false;
    std::vector<uint8_t> in{};   // of the message that comes
    std::vector<uint8_t> out{};  // not sent yet
  };
  struct Callee {
    LinkAddress address;
    bool called = false;
    net::Deadline call_at{};
    net::Deadline give_up = net::Deadline::max();  // from the first refusal on
  };

  void dial();
  void accept_visitors();
  void make_room();
  bool advance(Contact& contact, short ready);  // false: it is over, with a link or without
  void connected(Contact& contact);
  void read(Contact& contact);
  void send(Contact& contact);
  void call_failed(const Contact& contact, const std::string& reason);
  void give_up(int callee, const std::string& reason);
  void turn_away(const Contact& contact, const std::string& reason);

  const RunIdentity me_;
  net::Socket listener_;
  Patience patience_;
  Ends ends_;
  std::list<Contact> contacts_;
  std::map<int, Callee> callees_;
  bool reported_visitor_ = false;
};

}  // namespace pptrain::comm

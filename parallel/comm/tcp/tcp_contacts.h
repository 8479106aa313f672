// How two ranks of a run connect: calls, visitors, and the handshakes of both.
//
// One thread looks after all contacts at once, in its own poll(): a peer that is slow, silent or a stranger
// holds up no other. A visitor has ten seconds to prove that it is of this run.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/net/socket.h"
#include "parallel/comm/tcp/tcp_handshake.h"

namespace pptrain::comm {

// What a rank leaves in the store: "10.0.0.5 41234".
std::string to_text(const net::Address& address);
// Throws Error for what no rank would leave.
net::Address read_address(const std::string& text, int rank);

class TcpContacts {
 public:
  struct Options {
    std::chrono::milliseconds refused{0};  // so long a rank that refuses is called again
    std::chrono::milliseconds silent{0};   // so long a call may take
    bool reports_strangers = true;         // the first of them, on standard error
    // Called by handle() and call(); they may throw.
    std::function<void(int peer, net::Socket socket)> linked = {};
    // The call has failed for good. reason: a sentence that names both ranks and the address.
    std::function<void(int peer, const std::string& reason)> unreachable = {};
  };

  // listener: for the calls of others; closed: they do not call.
  TcpContacts(RunIdentity me, net::Socket listener, Options options);
  ~TcpContacts();
  TcpContacts(const TcpContacts&) = delete;
  TcpContacts& operator=(const TcpContacts&) = delete;

  // Calls the rank at all of its addresses at once; it has one link in the end, at the first that answers as
  // this rank. Does nothing if the call is under way.
  void call(int peer, const std::vector<net::Address>& addresses);
  // No more visitors are heard, and those that are there are sent away.
  void close_door();
  // No call is under way.
  bool idle() const;

  // Adds what poll() is to wait for, and at most this long.
  void watch(std::vector<pollfd>& entries) const;
  static constexpr std::chrono::milliseconds look_every{20};  // while there are contacts
  bool has_contacts() const { return !contacts_.empty(); }
  // `entries`: those that watch() added. Throws Error if the system gives no more sockets.
  void handle(std::span<const pollfd> entries);

  // From now on `options` serve the contacts; those that are there go on.
  void hand_over(Options options) { options_ = std::move(options); }

 private:
  struct Contact;

  void dial();
  void accept_visitors();
  void make_room();
  void advance(Contact& contact, short ready);
  void connected(Contact& contact);
  void read(Contact& contact);
  void send(Contact& contact);
  void link(Contact& contact);
  void lose(Contact& contact, const std::string& reason);
  void give_up(Contact& contact, const std::string& reason);
  void turn_away(Contact& contact, const std::string& reason);

  const RunIdentity me_;
  net::Socket listener_;
  Options options_;
  std::list<Contact> contacts_;
  bool reported_stranger_ = false;
};

}  // namespace pptrain::comm

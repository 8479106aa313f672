// How ranks that have left their addresses in the store come to be connected, every pair of them.
//
// Each rank calls all ranks below its own and is called by those above. One loop looks after everything at
// once: the store, calls, visitors, and the links that are there already, so that nobody who is slow, silent
// or a stranger holds up the others. A visitor has ten seconds to prove that it is of this run.
#pragma once

#include <poll.h>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/tcp/tcp_handshake.h"
#include "parallel/comm/tcp/tcp_socket.h"
#include "parallel/comm/tcp/tcp_store.h"

namespace pptrain::comm {

// What a rank leaves in the store: "10.0.0.5 41234".
struct LinkAddress {
  std::string host;
  int port = 0;
};
std::string address_key(int rank);
std::string to_text(const LinkAddress& address);
// Throws Error for what no rank would leave.
LinkAddress read_address(const std::string& text, int rank);

class Meeting {
 public:
  // listener: where the ranks above this one call.
  Meeting(const RunIdentity& me, Socket listener, TcpStore& store, const StartPatience& patience);

  // links[r]: the connection to rank r; links[rank] is closed. Returns on every rank after all have all their
  // links: only then may rank 0's store go. Throws Error that names the ranks that are missing or that ended
  // meanwhile, PeerFailure with what another rank left in the store as its end, StartStopped.
  std::vector<Socket> run();

 private:
  // A connection whose handshake is under way.
  struct Contact {
    Socket socket;
    Handshake handshake;
    int callee = -1;  // the rank that is called; -1: a visitor
    Deadline expires = Deadline::max();
    bool connecting = false;
    bool spoke = false;
    std::vector<uint8_t> in{};   // of the message that comes
    std::vector<uint8_t> out{};  // not sent yet
  };
  struct Callee {
    LinkAddress address;
    bool called = false;
    Deadline call_at{};
    Deadline give_up = Deadline::max();  // from the first refusal on
  };

  bool all_linked() const;
  bool released() const;
  std::string awaited() const;
  std::string report();

  void round();
  void look_at_store();
  void call();
  void wait_for_events();
  void handle(const std::vector<pollfd>& entries);
  void accept_visitors();
  void make_room();
  bool advance(Contact& contact, short ready);  // false: it is over, with a link or without
  void connected(Contact& contact);
  void read(Contact& contact);
  void send(Contact& contact);
  void call_failed(const Contact& contact, const std::string& reason);
  void turn_away(const Contact& contact, const std::string& reason);
  void watch(int peer);
  void tell_all_linked();

  const RunIdentity me_;
  const Socket listener_;
  TcpStore& store_;
  const StartPatience& patience_;

  std::vector<Socket> links_;
  std::vector<bool> heard_;  // rank 0: that rank r has all its links; others, of rank 0: that all have
  std::vector<bool> busy_;   // bytes of the run have come already
  std::list<Contact> contacts_;
  std::map<int, Callee> callees_;
  int next_callee_ = 0;
  Deadline next_look_{};
  std::chrono::milliseconds look_again_{5};
  bool told_ = false;
  bool reported_visitor_ = false;
};

}  // namespace pptrain::comm

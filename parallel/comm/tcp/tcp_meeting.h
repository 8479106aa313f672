// How ranks that have left their addresses in the store come together: connected along a tree, each of them
// with the addresses of all.
//
// One loop looks after everything at once: the store, calls, visitors, and the links that are there already.
// Further pairs of ranks are connected when they first exchange something (TcpEngine).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/split.h"
#include "parallel/comm/tcp/tcp_contacts.h"
#include "parallel/comm/tcp/tcp_store.h"

namespace pptrain::comm {

std::string address_key(int rank);

// What a rank has when all have come.
struct Met {
  RunIdentity me;
  std::unique_ptr<TcpContacts>
      contacts;  // with ranks that are ahead of this one and call it; none: a world of one
  std::vector<LinkAddress> addresses;  // by rank
  std::map<int, net::Socket> links;    // by rank: to its neighbours in the tree, at least
};

class Meeting {
 public:
  // listener: where other ranks call.
  Meeting(const RunIdentity& me, net::Socket listener, TcpStore& store, const StartPatience& patience);

  // Returns on every rank after all have come and those below it in the tree have read the store, which may
  // go when it returns on rank 0. Throws Error that names the ranks that are missing or that ended meanwhile,
  // PeerFailure with what another rank left in the store as its end, StartStopped.
  Met run();

 private:
  // What is said on a link, a byte each: upwards that all below are there, then that they have read the
  // addresses; downwards that all have come.
  int words_of(int peer) const;
  int heard(int peer) const;
  bool has_parent_link() const;
  bool heard_from_children(int words) const;
  bool all_have_come() const;
  bool done() const;
  std::vector<int> awaited() const;
  std::string report();

  void round();
  void go_on();
  void look_at_store();
  void wait_for_events();
  void watch(int peer);
  void tell(int peer);

  const RunIdentity me_;
  const Tree tree_;
  TcpStore& store_;
  const StartPatience& patience_;
  std::unique_ptr<TcpContacts> contacts_;

  std::map<int, net::Socket> links_;  // also of ranks that are done here, and call this one
  std::map<int, int> heard_;          // words of each neighbour
  int told_parent_ = 0;               // words
  std::vector<LinkAddress> addresses_;
  std::map<int, bool> busy_;  // bytes of the run have come already
  net::Deadline next_look_{};
  std::chrono::milliseconds look_again_{5};
};

}  // namespace pptrain::comm

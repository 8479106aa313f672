// Which ranks see one folder under one name: those of a host, if checkpoints are copies in its memory.
#pragma once

#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

class Hosts {
 public:
  Hosts() = default;  // all ranks see one folder
  // of_rank: as comm::host_numbers() gives it.
  explicit Hosts(std::vector<int> of_rank);

  int count() const { return static_cast<int>(first_.size()); }
  bool several() const { return count() > 1; }
  int of(int rank) const { return of_rank_.empty() ? 0 : of_rank_[static_cast<size_t>(rank)]; }
  int first(int host) const { return first_[static_cast<size_t>(host)]; }  // its lowest rank
  // Does this rank make, rename and remove the host's folders?
  bool is_first(int rank) const { return first(of(rank)) == rank; }
  std::vector<int> ranks_of(int host) const;  // of Hosts that were made from all ranks' hosts
  // The rank of another host that keeps this rank's files too. Only with several hosts.
  int buddy(int rank) const;

 private:
  std::vector<int> of_rank_;
  std::vector<int> first_{0};
};

// What each host's first rank gives, on all of its ranks. Collective.
std::string broadcast_on_hosts(comm::Communicator& comm, const Hosts& hosts, const std::string& mine);

}  // namespace pptrain::checkpoint

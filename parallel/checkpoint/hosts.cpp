#include "parallel/checkpoint/hosts.h"

#include <algorithm>
#include <utility>

namespace pptrain::checkpoint {

Hosts::Hosts(std::vector<int> of_rank) : of_rank_(std::move(of_rank)) {
  const int count = of_rank_.empty() ? 1 : std::ranges::max(of_rank_) + 1;
  first_.clear();
  for (int host = 0; host < count; ++host) first_.push_back(of_rank_.empty() ? 0 : ranks_of(host).front());
}

std::vector<int> Hosts::ranks_of(int host) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
    if (of_rank_[rank] == host) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

int Hosts::buddy(int rank) const {
  const std::vector<int> own = ranks_of(of(rank)), next = ranks_of((of(rank) + 1) % count());
  const auto place = static_cast<size_t>(std::ranges::find(own, rank) - own.begin());
  return next[place % next.size()];
}

std::string broadcast_on_hosts(comm::Communicator& comm, const Hosts& hosts, const std::string& mine) {
  std::string result;
  for (int host = 0; host < hosts.count(); ++host) {
    const std::string value = comm::broadcast_string(comm, mine, hosts.first(host));
    if (host == hosts.of(comm.rank())) result = value;
  }
  return result;
}

}  // namespace pptrain::checkpoint

#include "parallel/comm/links.h"

#include <utility>
#include <vector>

namespace pptrain::comm {

void connect_with_one(Communicator& group, int one, const std::function<bool(int rank)>& with) {
  std::vector<std::pair<int, int>> pairs;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == one || !with(rank)) continue;
    pairs.emplace_back(one, rank);
    pairs.emplace_back(rank, one);
  }
  group.connect(pairs);
}

}  // namespace pptrain::comm

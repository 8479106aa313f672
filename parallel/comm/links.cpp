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
  group.connect(pairs, 1);
}

void connect_all(Communicator& group, int blocks) {
  std::vector<std::pair<int, int>> pairs;
  for (int distance = 1; distance < group.size(); ++distance) {
    for (int rank = 0; rank < group.size(); ++rank)
      pairs.emplace_back(rank, (rank + distance) % group.size());
  }
  group.connect(pairs, blocks);
}

}  // namespace pptrain::comm

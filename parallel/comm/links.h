// Links of a group that several users of a communicator set up alike.
#pragma once

#include <functional>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Sets up the links in both directions between rank `one` and each other rank for which `with` is true, each
// of one block, since they move at once. Collective over `group`: Communicator::connect().
void connect_with_one(
    Communicator& group, int one, const std::function<bool(int rank)>& with = [](int) { return true; });

// The same between all ranks of `group`, of `blocks` each.
void connect_all(Communicator& group, int blocks);

}  // namespace pptrain::comm

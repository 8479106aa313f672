// How a rank computes while it waits: two computations of one thread take turns where they wait for other
// ranks.
#pragma once

#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Runs both, `first` from now on, `second` on a stack of its own. At most one goes on at a time: at each
// hand_over() of one the other goes on, until it hands over in turn or ends. Order and number of turns follow
// from the two alone, never from time, so ranks that run the same two begin the same exchanges in the same
// order. `turn(false)`: the first goes on, `turn(true)`: the second goes on, before it does.
//
// Returns when both have ended. What one throws comes out; before that the other is unwound from its
// hand_over(), or never begins.
void in_turns(const std::function<void()>& first, const std::function<void()>& second,
              const std::function<void(bool second)>& turn);

// Lets the other computation of in_turns() go on, if there is one. Never while an exception unwinds.
void hand_over();

// How a pass waits for what it exchanges. On a GPU, where wait() orders the stream, the other computation's
// work is enqueued ahead of the wait by this.
inline void wait_in_pass(Work& work, const std::function<std::string()>& what) {
  hand_over();
  work.wait(what);
}

}  // namespace pptrain::comm

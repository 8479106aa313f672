// Lets a rank compute while it waits: two computations of one thread take turns when they wait for other
// ranks.
#pragma once

#include <functional>
#include <string>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Runs both, `first` from now on, `second` on a stack of its own. At most one goes on at a time: at each
// hand_over() of one the other goes on, until it hands over in turn or ends. Order and number of turns follow
// from the two alone, never from time, so ranks that run the same two begin the same exchanges in the same
// order. Calls turn(false) before the first goes on, turn(true) before the second.
//
// Returns when both have ended. An exception of one is rethrown; before that the other is unwound from its
// hand_over(), or never begins.
void in_turns(const std::function<void()>& first, const std::function<void()>& second,
              const std::function<void(bool second)>& turn);

// Lets the other computation of in_turns() go on, if there is one. Never while an exception unwinds.
void hand_over();

// How a pass waits for an exchange. On a GPU wait() orders the stream: the other computation's work is
// enqueued ahead of the wait.
inline void wait_in_pass(Work& work, const std::function<std::string()>& what) {
  hand_over();
  work.wait(what);
}

}  // namespace pptrain::comm

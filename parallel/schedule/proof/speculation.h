// How far ranks may run into a step while the step before it can still be taken back: what post-validation of
// the optimizer needs to know of a schedule (Qi et al., arXiv 2401.10241, section 4).
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

// A rank runs its prefix on weights that may still change, then waits until every rank has ended the step
// before. Prefixes hold forwards, their messages, UNSHARD and RESHARD alone, and nothing that takes a
// gradient: no backwards, and no forwards of the last stage, which take the head's weight gradient with the
// loss. A prefix that is thrown away is run again from its beginning, UNSHARD too: what it had gathered is
// stale then and has to be dropped. All ranks at a place in the pipeline have one list, so that none gathers
// alone.
//
// If sends block (Schedule::blocking_sends), prefixes hold no messages, since what the wait runs on the
// device may wait for them.
//
// The wait cannot deadlock: what the actions of a prefix wait for is in prefixes too, so every rank comes to
// the end of its own, and what the wait itself needs was sent before any prefix began.
struct Speculation {
  std::vector<size_t> prefix;  // [rank] that many actions of its list
  // [rank] Sends and receives beyond the prefix that even out the channels if all prefixes are thrown away: a
  // sender lacks its partner's receive, or the other way round. In the channels' order.
  std::vector<std::vector<Action>> drain;
};

// The longest such prefixes. `schedule`: lowered and validated.
Speculation speculate(const Schedule& schedule);

}  // namespace pptrain::schedule

// A group of one rank: no transport, no messages, nothing to set up.
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Carries tensors of any device. job: where abort() goes; it must outlive the result and what is split off
// it.
std::unique_ptr<Communicator> make_self(Communicator& job);

}  // namespace pptrain::comm

// The end of a wait that nobody has answered.
#pragma once

#include "core/base/error.h"

namespace pptrain::comm {

// A wait for another rank was longer than the communicator's timeout. No rank is known to be dead: what the
// others are doing meanwhile tells whose fault it is.
class WaitTimeout : public Error {
 public:
  using Error::Error;
};

}  // namespace pptrain::comm

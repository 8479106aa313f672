// The end of a wait that nobody has answered.
#pragma once

#include <chrono>

#include "core/base/error.h"

namespace pptrain::comm {

// Of a communicator until set_timeout() says otherwise.
inline constexpr std::chrono::minutes default_timeout{10};

// A wait for another rank was longer than the communicator's timeout. No rank is known to be dead: what the
// others are doing meanwhile tells whose fault it is.
class WaitTimeout : public Error {
 public:
  using Error::Error;
};

}  // namespace pptrain::comm

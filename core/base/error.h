// The one family of exceptions of the program. Libraries throw; only `main` (and the thread that runs a rank)
// catches. Standard library alone, so that every folder may include it.
#pragma once

#include <stdexcept>
#include <string>

namespace pptrain {

// A run that cannot go on: exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bad job file or bad arguments, found before any rank starts work: exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The process was asked to stop before there was anything to save.
class StoppedAtStart : public Error {
 public:
  using Error::Error;
};

// This rank stops only because another rank failed; the other rank's message is the one to show.
class PeerFailure : public Error {
 public:
  using Error::Error;
};

}  // namespace pptrain

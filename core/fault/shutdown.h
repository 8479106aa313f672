// Signals that ask for an orderly end: finish the step, save, exit 3.
#pragma once

#include <csignal>

#include <array>

namespace pptrain::fault {

// While it lives, SIGTERM, SIGINT and SIGUSR1 only set a flag; a second SIGINT ends the process at once (exit
// code 130). The earlier handlers come back on destruction. One at a time in a process.
class Shutdown {
 public:
  Shutdown();
  ~Shutdown();
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;

  bool requested() const;

 private:
  std::array<struct sigaction, 3> previous_{};
};

}  // namespace pptrain::fault

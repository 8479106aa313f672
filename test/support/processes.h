// Runs one command as several processes, each with its own environment, as a launcher would.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace pptrain::test {

struct Process {
  std::vector<std::string> arguments;              // the program first
  std::map<std::string, std::string> environment;  // in addition to this process' own
};

struct Ended {
  int code = -1;       // exit code; 128 + the signal that ended it
  std::string output;  // standard output and error
};

// Starts all and waits for all, at most `seconds`; then kills those that still run (code 137).
std::vector<Ended> run_processes(const std::vector<Process>& processes, double seconds);

// A TCP port that was free a moment ago.
int free_port();

}  // namespace pptrain::test

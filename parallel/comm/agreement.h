// Ranks agree on whether the job can start, before any of them exits.
//
// What is wrong with a job is as a rule found by every rank, and sometimes by one alone: a file that its host
// lacks. A rank that ends while others still speak makes the launcher kill them. So every rank says in one
// collective what it found, rank 0 prints it, and all end together.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// In place of a fault that its rank has said itself already: it ends the job, and is not repeated.
inline constexpr const char* said_already = "\x01";

// True where no rank has a fault; `fault` is this rank's, "" for none. Otherwise false, on every rank, after
// rank 0 has called `say` with the report of all. Collective.
bool agree(Communicator& comm, const std::string& fault, const std::function<void(const std::string&)>& say);
// The same with the report on standard error.
bool agree(Communicator& comm, const std::string& fault);

// The faults by rank ("" for none), each said once: as it is where all ranks share it, otherwise after the
// names of those that have it: "rank 1: ...", "ranks 0, 2: ...".
std::string report_faults(std::span<const std::string> faults);

// What the UsageError says that `body` ends with; "" where it ends without one.
template <typename Body>
std::string fault_of(Body&& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace pptrain::comm

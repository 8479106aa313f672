// Ranks agree on whether the job can start, before any of them exits.
//
// A fault of a job is usually found by every rank, but sometimes by one alone: a file is missing on its host.
// If a rank ends while others still print, the launcher kills them. So every rank reports its fault in one
// collective, rank 0 prints all faults, and all ranks end together.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// Stands for a fault that its rank has printed itself: it ends the job, and is not repeated.
inline constexpr const char* said_already = "\x01";

// True if no rank has a fault; `fault` is this rank's, "" for none. Otherwise false, on every rank, after
// rank 0 has called `say` with the report of all. Collective.
bool agree(Communicator& comm, const std::string& fault, const std::function<void(const std::string&)>& say);
// The same with the report on standard error.
bool agree(Communicator& comm, const std::string& fault);

// The faults by rank ("" for none), each said once: unchanged if all ranks have it, otherwise after the names
// of the ranks that have it: "rank 1: ...", "ranks 0, 2: ...".
std::string report_faults(std::span<const std::string> faults);

// The text of the UsageError that `body` throws; "" if it throws none.
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

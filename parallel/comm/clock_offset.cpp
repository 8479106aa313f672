#include "parallel/comm/clock_offset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <fstream>
#include <string>

namespace pptrain::comm {
namespace {

using std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

constexpr int round_trips = 8;

std::string host_identity() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

int64_t now() {
  return nanoseconds(Clock::now().time_since_epoch()).count();
}

std::string wait_text() {
  return "clock_offset";
}

// Answers rank `other` with the time.
void tell_time(Communicator& comm, int other) {
  for (int i = 0; i < round_trips; ++i) {
    at::Tensor time = at::empty({1}, at::kLong);
    comm.irecv(time, other)->wait(wait_text);
    *time.data_ptr<int64_t>() = now();
    comm.isend(time, other)->wait(wait_text);
  }
}

nanoseconds ask_time(Communicator& comm) {
  int64_t quickest = INT64_MAX, offset = 0;
  for (int i = 0; i < round_trips; ++i) {
    at::Tensor time = at::zeros({1}, at::kLong);
    const int64_t asked = now();
    comm.isend(time, 0)->wait(wait_text);
    comm.irecv(time, 0)->wait(wait_text);
    const int64_t answered = now();
    if (answered - asked >= quickest) continue;
    quickest = answered - asked;
    offset = *time.const_data_ptr<int64_t>() - (asked + quickest / 2);
  }
  return nanoseconds(offset);
}

}  // namespace

nanoseconds clock_offset(Communicator& comm) {
  const std::string mine = host_identity();
  const std::string roots = broadcast_string(comm, mine, 0);
  return clock_offset(comm, !mine.empty() && mine == roots);
}

nanoseconds clock_offset(Communicator& communicator, bool same_clock) {
  Communicator& comm = communicator.host();
  const double asks = same_clock ? 0 : 1;
  const auto asking = gather(comm, std::span(&asks, 1), 0);
  if (comm.rank() != 0) return same_clock ? nanoseconds(0) : ask_time(comm);
  for (int rank = 1; rank < comm.size(); ++rank) {
    if (asking[rank][0] != 0) tell_time(comm, rank);
  }
  return nanoseconds(0);
}

}  // namespace pptrain::comm

#include "app/launch/spares.h"

#include <ATen/ops/full.h>

#include <chrono>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "core/base/process.h"

namespace pptrain::app {

std::unique_ptr<comm::Communicator> without_spares(comm::Communicator& processes, const Plan& plan) {
  const int ranks = plan.mesh.world_size();
  if (processes.size() == ranks || processes.rank() >= ranks) return nullptr;
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return processes.subgroup(members);
}

void tell_spares(comm::Communicator& processes, int ranks, int code) {
  const at::Tensor value = at::full({1}, code, at::kLong);
  for (int spare = ranks; spare < processes.size(); ++spare) {
    try {
      processes.isend(value, spare)->wait();
    } catch (const PeerFailure&) {  // its agent has ended it
    }
  }
}

int await_end(comm::Communicator& processes, const comm::Launch& launch,
              const std::function<bool()>& stop_requested) {
  constexpr std::chrono::milliseconds look{100}, patience_of_agent{3000};
  processes.set_timeout(std::chrono::hours(24 * 365));
  const at::Tensor value = at::full({1}, exit_done, at::kLong);
  const auto work = processes.irecv(value, 0);
  std::chrono::milliseconds stopping{0};
  while (!work->wait_for(look)) {
    if (!launch.has_agent || !stop_requested || !stop_requested()) continue;
    stopping += look;
    if (stopping > patience_of_agent) return exit_stopped;  // takes leave of the ranks, which may still work
  }
  return static_cast<int>(*value.const_data_ptr<int64_t>());
}

}  // namespace pptrain::app

// Whether each thread of a job's CPU ranks has a core that the rank's process may use. A launcher may have
// bound it to some of its host's cores, and a control group may have given it a quota of their time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/forecast/core_sharing.h"
#include "app/plan/plan.h"
#include "core/base/cores.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

struct RankCores {
  std::string host;
  int64_t threads = 1;
  Cores cores{};
};

// By rank on rank 0; empty on other ranks, and if ranks compute on GPUs. Collective.
std::vector<RankCores> gather_cores(comm::Communicator& world, const Plan& plan);

// Ranks of a host whose threads share cores.
struct CoreSet {
  std::string host;
  std::vector<int> ranks{};
  int64_t threads = 0;  // of all its ranks
  double cores = 0;
  int64_t of_host = 0;  // processors
  std::string group{};  // the group whose quota the cores are; "" if they are processors

  double load() const { return static_cast<double>(threads) / cores; }  // per core
};

// For each host the ranks with most threads per core: those bound to the same processors or to some of them,
// or those of a control group.
std::vector<CoreSet> crowded_sets(std::span<const RankCores> ranks);

// "host a: 4 threads of 4 ranks on 2 cores"; "" if each thread has a core. Says how to undo a binding.
std::string describe_crowding(std::span<const RankCores> ranks);

// For predictions: of the host with most threads per core.
CoreSharing core_sharing(std::span<const RankCores> ranks);

// As if so many ranks, e.g. a plan's, ran on this host as threads of this process.
std::vector<RankCores> ranks_here(int ranks, int64_t threads, const Cores& cores);

}  // namespace pptrain::app

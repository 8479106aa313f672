// Whether a plan's ranks have room: on their GPUs, or in their hosts' memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/forecast/prediction.h"
#include "app/plan/plan.h"

namespace pptrain::app {

// "12.30 GB" or "4.5 MB".
std::string in_units(double bytes);

struct MemoryFit {
  double needed = 0;  // bytes: of the fullest rank, or of a host's ranks together
  double room = 0;    // bytes; 0: not known
  int rank = 0;       // the fullest rank of the pipeline
  int ranks = 1;      // that share the room: 1 on a GPU
  bool of_host = false;
  std::string place{};  // whose room it is: "a h100", "this host"

  bool fits() const { return room <= 0 || needed <= room; }
  // "rank 3 needs 318.10 GB; one h100 has 80.00 GB"
  std::string describe() const;
  // The same with advice: what a start says if it refuses to begin.
  std::string shortage() const;
};

// For the fullest rank, with the bytes that a rank may use.
MemoryFit fit_on_gpu(const std::vector<RankBytes>& ranks, double room, std::string place);

// For the fullest host: all ranks, or distributed.ranks_per_host of them. `program`: further bytes of their
// processes; `available`: bytes of a host.
MemoryFit fit_on_host(const Plan& plan, const std::vector<RankBytes>& ranks, int64_t program,
                      double available);

// A change of the job under which the fullest rank has room, as it was predicted.
struct Remedy {
  std::vector<std::string> set;  // "distributed.reduce_gradients=microbatch"
  std::string note{};            // "twice the ranks"
  double bytes = 0;              // of the fullest rank
  double step_time = 0;          // s
};

// Changes that make each rank fit into `room` bytes: those that do so alone, the fastest first, at most
// three; else the smallest set that does so together. Empty if none does. Twice the ranks have twice the
// samples.
std::vector<Remedy> remedies(const Plan& plan, const CostSource& source, double room);

}  // namespace pptrain::app

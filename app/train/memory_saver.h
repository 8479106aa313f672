// Copies of a run's newest states in the host's memory, in a checkpoint's own form, from which the run goes
// on if its processes die (checkpoint.memory_seconds).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/run/run_dir.h"
#include "parallel/checkpoint/saver.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Why copies are impossible, the same on all ranks: a host has too little memory for those of its ranks'
// parts, and of another host's if there are several; "" if all have enough. Changes nothing. Collective over
// `disk`, made by checkpoint::disk_communicator().
std::string shortage_of_copies(comm::Communicator& disk, const RunDir& run_dir, const RankModel& model);

// Makes the hosts' folders ready, and frees what another run has left there. Returns why it cannot, the same
// on all ranks. Collective.
std::string begin_copies(comm::Communicator& disk, const RunDir& run_dir);

class MemorySaver {
 public:
  // After begin_copies(). Collective, as is save(). The references must outlive this. layout: as checkpoints
  // have it.
  MemorySaver(const RunContext& context, const RunDir& run_dir, RankModel& model,
              const checkpoint::Layout& layout);

  // On rank 0, whose clock counts: is a copy due, and the one before it done?
  bool wants() const;
  // Begins to copy the state of a finished step, which goes on while the run does.
  void save(const checkpoint::RunState& state);

  // Waits on all ranks for the copy under way. Collective.
  void finish();

 private:
  const RunContext& context_;
  const RunDir& run_dir_;
  RankModel& model_;
  std::unique_ptr<comm::Communicator> comm_;
  std::string id_;  // of the run, on each host's first rank
  std::chrono::steady_clock::time_point saved_at_{};
  std::unique_ptr<checkpoint::Saver> saver_;
};

}  // namespace pptrain::app

// A checkpoint's contents of a rank's stages: masters and optimizer states of what learns, by global name.
// Frozen weights come from the job's initial values (RankModel::initialise).
#pragma once

#include <span>
#include <vector>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/nn/parameter.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Is it the head's copy of a tied embedding? A checkpoint holds only the embedding.
bool is_tied_copy(const RunContext& context, const nn::Slice& slice);

// What this rank writes of its stages: its own part in the first replica, nothing in others.
std::vector<checkpoint::StageContents> contents_of(const RunContext& context,
                                                   std::span<const RankModel::RankStage> stages);

// Masters, of which this rank reads its own. Collective, as is read_all. Both throw Error if the checkpoint's
// model has another number of parameters.
void read_weights(RunContext& context, std::span<const RankModel::RankStage> stages,
                  const checkpoint::Reader& reader);

// Masters, optimizer states and steps. `comm` is of all ranks that see the checkpoint's folder, which check
// it together (checkpoint::load_on_all).
void read_all(RunContext& context, std::span<const RankModel::RankStage> stages,
              const checkpoint::Reader& reader, comm::Communicator& comm);

}  // namespace pptrain::app

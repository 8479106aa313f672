// One run of every pass before the first step.
#pragma once

#include <span>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/data/microbatch.h"

namespace pptrain::app {

// Runs every kind of pass of this rank's list twice on each stage and for each level of recompute, and an
// evaluation's pass once if the job has any. Exchanges within a stage (weights, gradients, rows of tensor-,
// context- and expert-parallel ranks) are real; inputs and gradients from other stages are made up.
// Returns when the device is done. Loaded kernels, allocated memory and connections stay. Weights,
// states, losses, counts and generators are as before; gradients are zero.
//
// On a GPU a kernel's first run may take seconds (its code is loaded, libraries choose their plans), and
// waits for the whole device. Kernels that come first in a later step, as for other numbers of an expert's
// rows, do so then (schedule::WaitModel::blocking).
//
// microbatches: of a step. Takes the longest one and, with data.lengths = "exact", also the shortest, even if
// all are as long: every rank must exchange as often, whatever lengths its own list has. Collective over the
// ranks of each stage.
void warm_up(const RunContext& context, RankModel& model, std::span<const data::Microbatch> microbatches);

}  // namespace pptrain::app

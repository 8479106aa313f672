// One run of every pass before the first step.
#pragma once

#include <span>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/data/microbatch.h"

namespace pptrain::app {

// Runs each kind of pass that the schedule has for this rank twice on each of its stages, for each level of
// recompute that the stage has, and that of an evaluation once if the job has any, with what those exchange
// within a stage (weights, gradients, rows of tensor-, context- and expert-parallel ranks), but no message to
// another stage: inputs and gradients at a stage's boundaries are made up. Experts' GEMMs are run for other
// numbers of rows too where receives hold the device (kernels::with_other_rows). Returns when the device is
// done. Nothing is left of it but kernels that are loaded, memory that is allocated and connections that are
// made: weights, states, losses, counts and generators are as before, gradients are zero.
//
// On a GPU, a kernel's first run may wait for the whole device (its code is loaded, libraries choose their
// plans): with a receive under way there, whose sender does the same, for ever.
//
// microbatches: of a step; the longest one is taken and, with data.lengths = "exact", the shortest too, even
// where all are as long: every rank exchanges as often, whatever lengths its own list has. Collective over
// the ranks of each stage.
void warm_up(const RunContext& context, RankModel& model, std::span<const data::Microbatch> microbatches);

}  // namespace pptrain::app

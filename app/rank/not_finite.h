// Finds the place in the model at which a step stopped being finite; runs only then.
#pragma once

#include <span>
#include <string>

#include "app/rank/rank_model.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Names weights that are not finite, if there are any, and which gradients are not: the nearest to the loss,
// where the backward pass met the first, and the nearest to the input, in the order of the model's layers.
// Gradients are summed over data ranks. The same text on every rank. Collective.
std::string describe_not_finite(comm::Communicator& world, std::span<const RankModel::RankStage> stages);

}  // namespace pptrain::app

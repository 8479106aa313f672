// Where in the model a step stopped being finite: looked for only then.
#pragma once

#include <span>
#include <string>

#include "app/rank/rank_model.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// Names weights that are not finite, if there are some, and which gradients are not: the nearest to the loss,
// where the backward pass met the first, and the nearest to the input, in the order of the model's layers.
// Gradients are those summed over data ranks. The same text on every rank. Collective.
std::string describe_not_finite(comm::Communicator& world, std::span<const RankModel::RankStage> stages);

}  // namespace pptrain::app

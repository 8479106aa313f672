// The meshes on which a job's model can run.
#pragma once

#include <cstdint>
#include <vector>

#include "app/plan/plan.h"

namespace pptrain::app {

// Every mesh of `world` ranks that divides the model's layers, heads, widths and experts and a sample's
// tokens evenly. Each data rank gets the same number of a step's `samples`. ep is above 1 only for a model
// with experts, and cp at most 64.
std::vector<mesh::MeshShape> legal_meshes(const PlanBase& base, int world, int64_t samples);

// Samples of a step of the job, of all data ranks.
int64_t samples_of_step(const PlanBase& base);

}  // namespace pptrain::app

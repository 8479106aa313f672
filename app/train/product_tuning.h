// Which algorithms the products of a run use, decided before its first step.
#pragma once

#include <set>

#include "app/train/run_context.h"
#include "core/kernels/products.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

// The products of all stages of the plan that are worth timing.
std::set<kernels::Product> products_of(const Plan& plan);

// Installs on all ranks what rank 0 has in its run's folder, in its user's shared table, or times now
// (train.tune_products), so that the same products have the same bits on every rank, after resuming and on
// other layouts. On a CPU nothing is there to choose.
// Collective over `patient`, which is of all ranks and waits as long as rank 0 takes.
void choose_product_algorithms(const RunContext& context, comm::Communicator& patient);

}  // namespace pptrain::app

// Which algorithms the products of a run use, decided before its first step.
#pragma once

#include <filesystem>
#include <functional>
#include <set>

#include "app/plan/run_context.h"
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

// For who does not train: installs on all ranks what the run kept whose checkpoint this step folder is, so
// that its products have the bits that they had there; nothing where the folder is not in a run's, or with
// train.tune_products off. Nothing is written. Collective over the world.
void use_products_of_run(const RunContext& context, const std::filesystem::path& step_folder);

// Installs on all ranks the table that `of_root` gives on the first. Collective over `world`.
void install_on_all(comm::Communicator& world, const std::function<kernels::ProductTable()>& of_root);

// products.json of the run whose folder holds the checkpoint's folder: RUN/checkpoints/step_N as it is named,
// or, where no file is there, as it lies behind links.
std::filesystem::path products_file_of(const std::filesystem::path& step_folder);

}  // namespace pptrain::app

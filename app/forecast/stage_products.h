// The matrix products that a model's passes do.
#pragma once

#include <set>
#include <span>

#include "app/forecast/footprint.h"
#include "core/kernels/products.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"

namespace pptrain::app {

// Of F, B, I and W of these stages, on the footprint's rank; products of experts, whose rows follow from the
// data, are not among them. Found by dry runs, each kind of stage once: half a microsecond a kernel.
std::set<kernels::Product> products_of(const models::ModelConfig& model,
                                       std::span<const models::StageSlice> stages, const BatchShape& batch);

}  // namespace pptrain::app

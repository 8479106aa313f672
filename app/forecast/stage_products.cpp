#include "app/forecast/stage_products.h"

namespace pptrain::app {

// Recomputing repeats products of F.
std::set<kernels::Product> products_of(const models::ModelConfig& model,
                                       std::span<const models::StageSlice> stages, const BatchShape& batch) {
  const Footprints footprints(model, batch);
  std::set<Footprints::Kind> known;
  const kernels::ProductRecord record;
  for (const models::StageSlice& stage : stages) {
    if (known.insert(footprints.kind_of(stage)).second) dry_run(model, stage, batch);
  }
  return record.products();
}

}  // namespace pptrain::app

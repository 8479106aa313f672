// Cost of an optimizer's step, for predictions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"

namespace pptrain::optim {

// Parameters that have the same shape and the same optimizer cost.
struct ParameterKind {
  nn::Role role = nn::Role::matrix;
  std::vector<int64_t> shape;  // global
  int64_t local = 0;           // elements of each that this rank's layers see
  int64_t count = 0;
  bool operator==(const ParameterKind&) const = default;
};
std::vector<ParameterKind> parameter_kinds(std::span<const nn::ParameterSpec* const> specs);

// Cost of the optimizer on one of the ranks that hold the same parameters.
struct OptimizerShare {
  double held = 0;       // bytes between steps, with those for undo if optimizer.post_validation is on
  double moved = 0;      // bytes that a step reads and writes
  double flops = 0;      // of Muon's GEMMs, each matrix once over all ranks that hold parts of it
  double sent = 0;       // bytes that it sends to have its parts of matrices made whole elsewhere
  double received = 0;   // bytes of results that come back
  double workspace = 0;  // bytes at most, during the step: whole matrices, and messages under way
};

// For these parameters, at their local shapes: sharded over `shards` ranks, and each shard on `replicas`
// ranks. compute: what layers compute in, as Muon does. Rates assume a balanced load.
OptimizerShare optimizer_share(const config::OptimizerSection& options, std::span<const ParameterKind> kinds,
                               at::ScalarType compute, int64_t shards = 1, int64_t replicas = 1);

}  // namespace pptrain::optim

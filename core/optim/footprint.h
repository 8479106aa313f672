// What a step of an optimizer takes, for predictions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"

namespace pptrain::optim {

// Parameters that are alike in all that an optimizer's cost depends on.
struct ParameterKind {
  nn::Role role = nn::Role::matrix;
  std::vector<int64_t> shape;  // global
  int64_t local = 0;           // elements of each that this rank's layers see
  int64_t count = 0;
  bool operator==(const ParameterKind&) const = default;
};
std::vector<ParameterKind> parameter_kinds(std::span<const nn::ParameterSpec* const> specs);

// What one of the ranks that hold the same parameters has of the optimizer.
struct OptimizerShare {
  double held = 0;       // bytes between steps, those for undo included where optimizer.post_validation is on
  double moved = 0;      // bytes that a step reads and writes
  double flops = 0;      // of Muon's products, each matrix once over all ranks that hold parts of it
  double sent = 0;       // bytes that it sends to have its parts of matrices made whole elsewhere
  double received = 0;   // bytes of results that come back
  double workspace = 0;  // bytes at most, during the step: whole matrices, and messages under way
};

// Of these parameters, at their local shapes: `shards` ranks share them out, and `replicas` hold each share.
// compute: what layers compute in, as Muon does. Rates are those of a balanced load.
OptimizerShare optimizer_share(const config::OptimizerSection& options, std::span<const ParameterKind> kinds,
                               at::ScalarType compute, int64_t shards = 1, int64_t replicas = 1);

}  // namespace pptrain::optim

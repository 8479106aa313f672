// The loads of a step's experts, summed over all ranks while they go on.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "core/metrics/step_record.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "parallel/comm/communicator.h"

namespace pptrain::app {

class LoadSum {
 public:
  // Collective over `world`, which must outlive this. model: one with sparse layers.
  LoadSum(comm::Communicator& world, const models::ModelConfig& model);

  // Begins to sum what each rank's stages say of a step; never waits. One sum is under way at a time.
  void start(const std::vector<models::TransformerStage::ExpertLoads>& own);
  // By layer, the same on every rank. Collective.
  std::vector<metrics::ExpertLoad> wait();

 private:
  std::unique_ptr<comm::Communicator> group_;  // of its own: its sums meet no others
  std::vector<int> layers_;                    // that are sparse
  at::Tensor loads_;                           // int64 [layers, experts]
  std::unique_ptr<comm::Work> work_;
};

}  // namespace pptrain::app

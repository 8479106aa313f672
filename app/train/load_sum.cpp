#include "app/train/load_sum.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace pptrain::app {

LoadSum::LoadSum(comm::Communicator& world, const models::ModelConfig& model)
    : group_(world.host().split(0, world.rank())) {
  for (int layer = 0; layer < model.layers; ++layer) {
    if (model.sparse.contains(layer)) layers_.push_back(layer);
  }
  loads_ = at::zeros({static_cast<int64_t>(layers_.size()), model.sparse.experts},
                     at::TensorOptions().dtype(at::kLong));
}

void LoadSum::start(const std::vector<models::TransformerStage::ExpertLoads>& own) {
  loads_.zero_();
  for (const auto& [layer, rows] : own) {
    const auto row = std::ranges::find(layers_, layer) - layers_.begin();
    loads_[row].copy_(rows);
  }
  work_ = group_->iall_reduce_sum(loads_);
}

std::vector<metrics::ExpertLoad> LoadSum::wait() {
  std::exchange(work_, nullptr)->wait([] { return "the loads of the experts"; });
  std::vector<metrics::ExpertLoad> result;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const at::Tensor row = loads_[static_cast<int64_t>(i)];
    const auto* const values = row.const_data_ptr<int64_t>();
    result.push_back({.layer = layers_[i], .rows = {values, values + row.numel()}});
  }
  return result;
}

}  // namespace pptrain::app

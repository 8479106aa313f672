#include "app/rank/load_sum.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace pptrain::app {

LoadSum::LoadSum(comm::Communicator& world, const models::ModelConfig& model)
    : group_(world.host().duplicate()) {
  for (int layer = 0; layer < model.layers; ++layer) {
    if (model.sparse.contains(layer)) layers_.push_back(layer);
  }
  loads_ = at::zeros({static_cast<int64_t>(layers_.size()), model.sparse.experts},
                     at::TensorOptions().dtype(at::kLong));
}

void LoadSum::start(const std::vector<models::TransformerStage::ExpertLoads>& own) {
  loads_.zero_();
  std::vector<at::Tensor> rows;
  for (const auto& load : own) rows.push_back(load.rows);
  const at::Tensor on_host = rows.empty() ? loads_ : at::stack(rows).cpu();  // one wait for the device
  for (size_t i = 0; i < own.size(); ++i) {
    const auto row = std::ranges::find(layers_, own[i].layer) - layers_.begin();
    loads_[row].copy_(on_host[static_cast<int64_t>(i)]);
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

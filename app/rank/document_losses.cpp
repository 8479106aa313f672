#include "app/rank/document_losses.h"

#include <algorithm>
#include <utility>

namespace pptrain::app {

DocumentLosses::DocumentLosses(RankModel& model, std::vector<int64_t> starts)
    : model_(model),
      starts_(std::move(starts)),
      sums_(starts_.size() - 1, 0),
      targets_(starts_.size() - 1, 0) {
  if (!model.has_last_stage()) return;
  model.stages().back().stage->hear_losses(
      [this](const data::Microbatch& data, const at::Tensor& losses) { add(data, losses); });
}

DocumentLosses::~DocumentLosses() {
  if (model_.has_last_stage()) model_.stages().back().stage->hear_losses({});
}

void DocumentLosses::add(const data::Microbatch& data, const at::Tensor& losses) {
  const at::Tensor loss = losses.cpu(), labels = data.labels.cpu().contiguous();
  const auto* const of_token = loss.const_data_ptr<float>();
  const auto* const label = labels.const_data_ptr<int64_t>();
  const auto* const place = data.places.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < loss.numel(); ++i) {
    if (label[i] == data::ignore_label) continue;
    const auto document =
        static_cast<size_t>(std::ranges::upper_bound(starts_, place[i]) - starts_.begin() - 1);
    sums_.at(document) += static_cast<double>(of_token[i]);
    targets_[document] += 1;
  }
}

std::vector<DocumentLoss> DocumentLosses::total() const {
  const std::vector<double> sums = model_.sum_of_last_stage(sums_);
  const std::vector<double> targets = model_.sum_of_last_stage(targets_);
  std::vector<DocumentLoss> documents;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (targets[i] > 0)
      documents.push_back({static_cast<int64_t>(i), sums[i], static_cast<int64_t>(targets[i])});
  }
  return documents;
}

}  // namespace pptrain::app

#include "models/stage_records.h"

namespace pptrain::models {
namespace {

// Of all tensors that add(record, tensors) finds in the records.
template <typename Record, typename Add>
int64_t bytes_of(const std::map<int, Record>& records, const Add& add) {
  std::vector<at::Tensor> tensors;
  for (const auto& [microbatch, record] : records) add(record, tensors);
  return nn::storage_bytes(tensors);
}

template <typename More>
void append(std::vector<at::Tensor>& tensors, const More& more) {
  tensors.insert(tensors.end(), more.begin(), more.end());
}

}  // namespace

int64_t StageRecords::saved_bytes() const {
  return bytes_of(saved, [](const StageRecord& record, std::vector<at::Tensor>& tensors) {
    for (const Block::Saved& block : record.blocks) append(tensors, saved_tensors(block));
    tensors.push_back(record.dy);
    append(tensors, record.norm.tensors());
  });
}

int64_t StageRecords::pending_bytes() const {
  return bytes_of(pending, [](const StageRecord& record, std::vector<at::Tensor>& tensors) {
    for (const nn::WeightGradQueue& queue : record.queues) append(tensors, queue.operands());
    tensors.push_back(record.dy);
  });
}

int64_t StageRecords::head_bytes() const {
  return bytes_of(of_head, [](const nn::LinearCrossEntropy::Pending& record,
                              std::vector<at::Tensor>& tensors) { append(tensors, record); });
}

void StageRecords::clear() {
  saved.clear();
  pending.clear();
  of_head.clear();
}

}  // namespace pptrain::models

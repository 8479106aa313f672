// The losses of single documents, gathered from a rank's forward passes.
#pragma once

#include <cstdint>
#include <vector>

#include "app/rank/rank_model.h"

namespace pptrain::app {

struct DocumentLoss {
  int64_t document = 0;  // its number in the stream
  double sum = 0;        // nats, over its targets
  int64_t targets = 0;
};

// Listens to the model's last stage while it lives; the microbatches need places (LoaderOptions).
class DocumentLosses {
 public:
  // starts: where the stream's documents begin, ascending from 0; the last is the end of all. The model must
  // outlive this.
  DocumentLosses(RankModel& model, std::vector<int64_t> starts);
  ~DocumentLosses();
  DocumentLosses(const DocumentLosses&) = delete;
  DocumentLosses& operator=(const DocumentLosses&) = delete;

  // Of all ranks, those that had a target, in order; the same on every rank. Collective.
  std::vector<DocumentLoss> total() const;

 private:
  void add(const data::Microbatch& data, const at::Tensor& losses);

  RankModel& model_;
  std::vector<int64_t> starts_;
  std::vector<double> sums_, targets_;  // of each document, on this rank
};

}  // namespace pptrain::app

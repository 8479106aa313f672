#include "core/data/data_loader.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/data/step_source.h"

namespace pptrain::data {

DataLoader::DataLoader(TokenDataset dataset, const LoaderOptions& options, bool shuffle, uint64_t seed)
    : source_(make_step_source(std::move(dataset), options)),
      sampler_(source_->checked_samples(), shuffle, seed) {}

Step DataLoader::step(int64_t next_sample) const {
  return source_->step(next_sample, [&](int64_t position) { return sampler_(position); });
}

ValidationLoader::ValidationLoader(TokenDataset dataset, const LoaderOptions& options, int64_t batches) {
  if (batches < 0) throw Error(fmt::format("data: {} validation batches; 0 means all", batches));
  if (dataset.size() < 2) {
    throw Error(
        fmt::format("data: '{}' has {} tokens for validation, but at least 2 are needed; raise "
                    "data.val_fraction or set eval.interval = 0",
                    dataset.path().string(), dataset.size()));
  }
  source_ = make_step_source(std::move(dataset), options);
  for (int64_t next = 0; next < source_->all_samples() && (batches == 0 || this->batches() < batches);
       next += source_->samples_from(next)) {
    begins_.push_back(next);
  }
}

std::vector<Microbatch> ValidationLoader::batch(int64_t index) const {
  if (index < 0 || index >= batches()) {
    throw Error(fmt::format("data: validation batch {} of {}", index, batches()));
  }
  return source_->step(begins_[static_cast<size_t>(index)], [](int64_t place) { return place; }).microbatches;
}

}  // namespace pptrain::data

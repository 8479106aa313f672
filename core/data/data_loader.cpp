#include "core/data/data_loader.h"

#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/step_source.h"

namespace pptrain::data {

namespace {

std::vector<double> weights_of(const std::vector<WeightedStream>& streams) {
  std::vector<double> weights;
  for (const WeightedStream& stream : streams) weights.push_back(stream.weight);
  return weights;
}

std::vector<TokenDataset> tokens_of(std::vector<WeightedStream> streams) {
  std::vector<TokenDataset> tokens;
  for (WeightedStream& stream : streams) tokens.push_back(std::move(stream.tokens));
  return tokens;
}

// Streams of one length would else be shuffled alike.
uint64_t seed_of(uint64_t seed, size_t stream) {
  return seed ^ (0x9e3779b97f4a7c15 * stream);
}

}  // namespace

DataLoader::DataLoader(std::vector<WeightedStream> streams, const LoaderOptions& options, bool shuffle,
                       uint64_t seed)
    : options_(options),
      blend_(weights_of(streams)),
      source_(make_step_source(tokens_of(std::move(streams)), options)) {
  for (const int64_t samples : source_->checked_samples())
    samplers_.emplace_back(samples, shuffle, seed_of(seed, samplers_.size()));
  for (size_t i = 0; i < samplers_.size(); ++i)
    log_of(Subsystem::data)
        .info("stream {}: {} samples an epoch, {}", i, samplers_[i].samples(),
              shuffle ? fmt::format("shuffled with seed {}", seed_of(seed, i)) : "in the order of the file");
}

DataLoader::DataLoader(TokenDataset dataset, const LoaderOptions& options, bool shuffle, uint64_t seed)
    : DataLoader(std::vector<WeightedStream>{{std::move(dataset), 1}}, options, shuffle, seed) {}

Step DataLoader::step(int64_t next_sample) const {
  if (logs(Subsystem::data, spdlog::level::debug)) log_step(next_sample);
  Step step = source_->step(next_sample, [&](int64_t position) {
    const Sample taken = blend_(position);
    return Sample{.stream = taken.stream, .index = samplers_[taken.stream](taken.index)};
  });
  if (options_.sequence_slices == 1) return step;
  std::vector<Microbatch> slices;
  for (const Microbatch& whole : step.microbatches) {
    const int number = static_cast<int>(slices.size()) / options_.sequence_slices;
    for (Microbatch& slice :
         cut_in_slices(whole, options_.sequence_slices, options_.attention_length, options_.tp_size, number))
      slices.push_back(std::move(slice));
  }
  step.microbatches = std::move(slices);
  return step;
}

void DataLoader::log_step(int64_t next_sample) const {
  const std::vector<int64_t> taken = blend_.taken(next_sample);
  for (size_t i = 0; i < samplers_.size(); ++i)
    log_of(Subsystem::data)
        .debug(
            "the step begins at sample {}; stream {} is in epoch {}, at its sample {} (number {} of the "
            "files)",
            next_sample, i, taken[i] / samplers_[i].samples(), taken[i], samplers_[i](taken[i]));
}

std::vector<double> DataLoader::epochs(int64_t samples) const {
  const std::vector<int64_t> taken = blend_.taken(samples);
  std::vector<double> epochs;
  for (size_t i = 0; i < samplers_.size(); ++i)
    epochs.push_back(static_cast<double>(taken[i]) / static_cast<double>(samplers_[i].samples()));
  return epochs;
}

int64_t DataLoader::samples_per_epoch() const {
  return std::accumulate(samplers_.begin(), samplers_.end(), int64_t{0},
                         [](int64_t sum, const Sampler& sampler) { return sum + sampler.samples(); });
}

ValidationLoader::ValidationLoader(TokenDataset dataset, const LoaderOptions& options, int64_t batches) {
  if (batches < 0) throw Error(fmt::format("data: {} validation batches; 0 means all", batches));
  if (dataset.size() < 2) {
    throw Error(
        fmt::format("data: '{}' has {} token{} for validation, but at least 2 are needed: give more "
                    "(val_path, or a larger val_fraction), or neither key",
                    dataset.path(), dataset.size(), dataset.size() == 1 ? "" : "s"));
  }
  source_ = make_step_source({std::move(dataset)}, options);
  for (int64_t next = 0; next < source_->all_samples() && (batches == 0 || this->batches() < batches);
       next += source_->samples_from(next)) {
    begins_.push_back(next);
  }
}

std::vector<Microbatch> ValidationLoader::batch(int64_t index) const {
  if (index < 0 || index >= batches()) {
    throw Error(fmt::format("data: validation batch {} of {}", index, batches()));
  }
  const auto in_order = [](int64_t place) { return Sample{.stream = 0, .index = place}; };
  return source_->step(begins_[static_cast<size_t>(index)], in_order).microbatches;
}

}  // namespace pptrain::data

#include "core/data/data_loader.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/context_part.h"

namespace pptrain::data {
namespace {

// Where a row comes from: its first token and how many targets it has (0: filling).
struct Row {
  int64_t first = 0;
  int64_t targets = 0;
};

// Rows of a step over all data ranks, by their number.
using Rows = std::function<Row(int64_t)>;

// Reads one row after the other.
class RowReader {
 public:
  RowReader(const TokenDataset& dataset, const LoaderOptions& options)
      : dataset_(dataset),
        document_end_(options.document_end),
        tokens_(static_cast<size_t>(options.seq_len) + 1),
        labels_(static_cast<size_t>(options.seq_len)) {}

  void read(const Row& row) {
    const auto given = static_cast<size_t>(row.targets);
    if (given > 0) dataset_.read(row.first, std::span(tokens_).first(given + 1));
    std::fill(std::copy_n(tokens_.begin() + 1, given, labels_.begin()), labels_.end(), ignore_label);
    std::fill(tokens_.begin() + row.targets, tokens_.end(), 0);
    targets_ = row.targets;
    starts_ = {0};
    for (size_t i = 0; document_end_ && i < given; ++i) {
      if (tokens_[i] != *document_end_) continue;
      labels_[i] = ignore_label;
      --targets_;
      if (i + 1 < labels_.size()) starts_.push_back(static_cast<int32_t>(i) + 1);
    }
  }

  // Of the row read last: its tokens, filled up, with their labels; where its documents begin; its targets.
  std::span<const int64_t> tokens() const { return std::span(tokens_).first(labels_.size()); }
  std::span<const int64_t> labels() const { return labels_; }
  const std::vector<int32_t>& starts() const { return starts_; }
  int64_t targets() const { return targets_; }

  // The same as targets() after read(row), without reading where nothing depends on the tokens.
  int64_t targets_of(const Row& row) {
    if (!document_end_) return row.targets;
    read(row);
    return targets_;
  }

 private:
  const TokenDataset& dataset_;
  std::optional<int64_t> document_end_;
  std::vector<int64_t> tokens_;  // of a row, and the one behind it
  std::vector<int64_t> labels_;
  std::vector<int32_t> starts_;
  int64_t targets_ = 0;
};

at::Tensor host_list(const LoaderOptions& options, at::ScalarType type) {
  return at::empty({options.micro_batch_size * options.seq_len}, at::TensorOptions().dtype(type));
}

// Each token's place in its document.
at::Tensor positions_of(const std::vector<int32_t>& starts) {
  at::Tensor positions = at::empty({starts.back()}, at::TensorOptions().dtype(at::kInt));
  auto* to = positions.mutable_data_ptr<int32_t>();
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    std::iota(to + starts[i], to + starts[i + 1], 0);
  }
  return positions;
}

// The whole list of rows `first` and following, on the host.
Microbatch read_list(RowReader& reader, const LoaderOptions& options, const Rows& rows, int64_t first) {
  const int64_t seq = options.seq_len;
  Microbatch list;
  list.tokens = host_list(options, at::kLong);
  list.labels = host_list(options, at::kLong);
  std::vector<int32_t> starts;
  for (int64_t i = 0; i < options.micro_batch_size; ++i) {
    reader.read(rows(first + i));
    std::ranges::copy(reader.tokens(), list.tokens.mutable_data_ptr<int64_t>() + i * seq);
    std::ranges::copy(reader.labels(), list.labels.mutable_data_ptr<int64_t>() + i * seq);
    for (const int32_t start : reader.starts()) starts.push_back(static_cast<int32_t>(i * seq) + start);
    list.targets += reader.targets();
  }
  starts.push_back(static_cast<int32_t>(options.micro_batch_size * seq));
  list.positions = positions_of(starts);
  list.segments = kernels::make_segments(std::move(starts), options.device);
  return list;
}

// Pinned memory that a copy still reads is not handed out again before the copy is done.
at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host;
}

std::shared_ptr<const kernels::ContextSplit> make_split(const LoaderOptions& o) {
  if (o.cp_size == 1) return nullptr;
  return std::make_shared<const kernels::ContextSplit>(
      kernels::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank));
}

Step load_step(const TokenDataset& dataset, const LoaderOptions& options, const Rows& rows) {
  const std::shared_ptr<const kernels::ContextSplit> split = make_split(options);
  const int64_t all = options.dp_size * options.micro_batch_size;  // rows of all data ranks
  RowReader reader(dataset, options);
  Step step;
  for (int64_t j = 0; j < options.microbatches; ++j) {
    Microbatch list = read_list(reader, options, rows, j * all + options.dp_rank * options.micro_batch_size);
    if (!options.need_tokens) list.tokens.reset();
    if (!options.need_labels) list.labels.reset();
    Microbatch& microbatch = step.microbatches.emplace_back(split ? part_of(list, split) : std::move(list));
    for (at::Tensor* tensor : {&microbatch.tokens, &microbatch.labels, &microbatch.positions}) {
      if (tensor->defined()) *tensor = to_device(*tensor, options.device);
    }
    microbatch.global_tokens = all * options.seq_len;
    for (int64_t i = j * all; i < (j + 1) * all; ++i) microbatch.global_targets += reader.targets_of(rows(i));
    step.targets += microbatch.global_targets;
  }
  return step;
}

const LoaderOptions& checked(const LoaderOptions& o) {
  if (o.seq_len < 1 || o.micro_batch_size < 1 || o.microbatches < 1 || o.dp_size < 1 || o.dp_rank < 0 ||
      o.dp_rank >= o.dp_size) {
    throw Error(fmt::format(
        "data loader: seq_len {}, micro_batch_size {}, microbatches {}, data rank {} of {} must be "
        "positive, and the rank below their number",
        o.seq_len, o.micro_batch_size, o.microbatches, o.dp_rank, o.dp_size));
  }
  make_split(o);  // throws where rows cannot be cut so
  return o;
}

int64_t checked_samples(const TokenDataset& dataset, int64_t seq_len) {
  const int64_t samples = dataset.samples(seq_len);
  if (samples < 1) {
    throw Error(
        fmt::format("data: '{}' has {} tokens for training, but one sample of train.seq_len = {} needs {}",
                    dataset.path().string(), dataset.size(), seq_len, seq_len + 1));
  }
  return samples;
}

}  // namespace

DataLoader::DataLoader(TokenDataset dataset, const LoaderOptions& options, bool shuffle, uint64_t seed)
    : dataset_(std::move(dataset)),
      options_(checked(options)),
      sampler_(checked_samples(dataset_, options_.seq_len), shuffle, seed) {}

Step DataLoader::step(int64_t next_sample) const {
  const int64_t seq = options_.seq_len;
  const auto rows = [&](int64_t i) { return Row{.first = sampler_(next_sample + i) * seq, .targets = seq}; };
  return load_step(dataset_, options_, rows);
}

ValidationLoader::ValidationLoader(TokenDataset dataset, const LoaderOptions& options, int64_t batches)
    : dataset_(std::move(dataset)), options_(checked(options)) {
  if (batches < 0) throw Error(fmt::format("data: {} validation batches; 0 means all", batches));
  if (dataset_.size() < 2) {
    throw Error(
        fmt::format("data: '{}' has {} tokens for validation, but at least 2 are needed; raise "
                    "data.val_fraction or set eval.interval = 0",
                    dataset_.path().string(), dataset_.size()));
  }
  const int64_t tokens_per_batch = options_.samples_per_step() * options_.seq_len;
  const int64_t all = (dataset_.size() - 1 + tokens_per_batch - 1) / tokens_per_batch;
  batches_ = batches == 0 ? all : std::min(batches, all);
}

std::vector<Microbatch> ValidationLoader::batch(int64_t index) const {
  if (index < 0 || index >= batches_) {
    throw Error(fmt::format("data: validation batch {} of {}", index, batches_));
  }
  const int64_t seq = options_.seq_len;
  const int64_t first_row = index * options_.samples_per_step();
  const auto rows = [&](int64_t i) {
    const int64_t first = (first_row + i) * seq;
    return Row{.first = first, .targets = std::clamp<int64_t>(dataset_.size() - 1 - first, 0, seq)};
  };
  return load_step(dataset_, options_, rows).microbatches;
}

int64_t ValidationLoader::valid_tokens() const {
  return std::min(dataset_.size() - 1, batches_ * options_.samples_per_step() * options_.seq_len);
}

}  // namespace pptrain::data

#include "core/data/data_loader.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "core/base/error.h"

namespace pptrain::data {
namespace {

// Where a row comes from: its first token and how many targets it has (0: filling).
struct Row {
  int64_t first = 0;
  int64_t targets = 0;
};

// The tokens of each microbatch's list that are here: all of it, a range for each row, where the rank has its
// rows alone.
struct ListPart {
  explicit ListPart(const LoaderOptions& o) {
    const auto order = o.cp_size > 1 ? o.cp_order : kernels::ContextOrder::contiguous;
    auto split = std::make_shared<const kernels::ContextSplit>(
        kernels::split_rows(order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank));
    ranges = split->own();
    tokens = split->tokens(o.cp_rank);
    if (o.cp_size > 1) context = std::move(split);
  }

  std::shared_ptr<const kernels::ContextSplit> context;
  std::vector<kernels::TokenRange> ranges;  // each within a row
  int64_t tokens = 0;
};

at::Tensor host_tensor(int64_t tokens, at::Device device) {
  return at::empty({tokens}, at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
}

// Each token's place in its row.
at::Tensor positions_of(const ListPart& part, int64_t seq_len) {
  at::Tensor positions = at::empty({part.tokens}, at::TensorOptions().dtype(at::kInt));
  const std::span<int32_t> list(positions.mutable_data_ptr<int32_t>(), static_cast<size_t>(part.tokens));
  auto to = list.begin();
  for (const kernels::TokenRange& range : part.ranges) {
    for (int64_t i = range.begin; i < range.end; ++i) *to++ = static_cast<int32_t>(i % seq_len);
  }
  return positions;
}

// Tokens [first, first + to.size()) of a row whose `targets` tokens are `row`; the rest of a row is
// `filling`.
void copy_or_fill(std::span<const int64_t> row, int64_t first, int64_t filling, std::span<int64_t> to) {
  const auto begin = std::min(static_cast<size_t>(first), row.size());
  const auto there = row.subspan(begin, std::min(to.size(), row.size() - begin));
  std::fill(std::ranges::copy(there, to.begin()).out, to.end(), filling);
}

// Rows of a step over all data ranks, by their number.
using Rows = std::function<Row(int64_t)>;

// Fills the lists, where they are defined, with the part of rows `first` and following. `buffer` holds a row
// and the token behind it.
void read_rows(const TokenDataset& dataset, int64_t seq_len, const ListPart& part, const Rows& rows,
               int64_t first, std::span<int64_t> buffer, Microbatch& to) {
  int64_t read = -1;  // the row in the buffer
  int64_t local = 0;
  size_t targets = 0;
  for (const kernels::TokenRange& range : part.ranges) {
    if (const int64_t number = range.begin / seq_len; number != read) {
      const Row row = rows(first + number);
      targets = static_cast<size_t>(row.targets);
      if (targets > 0) dataset.read(row.first, buffer.first(targets + 1));
      read = number;
    }
    const auto fill = [&](const at::Tensor& list, std::span<const int64_t> row, int64_t filling) {
      if (!list.defined()) return;
      copy_or_fill(row, range.begin % seq_len, filling,
                   {list.mutable_data_ptr<int64_t>() + local, static_cast<size_t>(range.length())});
    };
    fill(to.tokens, buffer.first(targets), 0);
    fill(to.labels, buffer.subspan(1, targets), ignore_label);
    local += range.length();
  }
}

// Rows `first` and following, as many as fit.
Microbatch load_microbatch(const TokenDataset& dataset, const LoaderOptions& options, const ListPart& part,
                           const Rows& rows, int64_t first, std::span<int64_t> buffer) {
  Microbatch microbatch;
  for (int64_t i = 0; i < options.micro_batch_size; ++i) microbatch.targets += rows(first + i).targets;
  if (options.need_tokens) microbatch.tokens = host_tensor(part.tokens, options.device);
  if (options.need_labels) microbatch.labels = host_tensor(part.tokens, options.device);
  if (options.need_tokens || options.need_labels) {
    read_rows(dataset, options.seq_len, part, rows, first, buffer, microbatch);
  }
  // Pinned memory that a copy still reads is not handed out again before the copy is done.
  if (options.need_tokens) microbatch.tokens = microbatch.tokens.to(options.device, /*non_blocking=*/true);
  if (options.need_labels) microbatch.labels = microbatch.labels.to(options.device, /*non_blocking=*/true);
  return microbatch;
}

Step load_step(const TokenDataset& dataset, const LoaderOptions& options, const Rows& rows) {
  const int64_t b = options.micro_batch_size;
  const int64_t seq = options.seq_len;
  const ListPart part(options);
  const at::Tensor positions = positions_of(part, seq).to(options.device);
  const kernels::Segments segments = kernels::equal_segments(b, seq, options.device);
  std::vector<int64_t> buffer(static_cast<size_t>(seq) + 1);
  Step step;
  for (int64_t j = 0; j < options.microbatches; ++j) {
    const int64_t first = (j * options.dp_size + options.dp_rank) * b;
    Microbatch& microbatch =
        step.microbatches.emplace_back(load_microbatch(dataset, options, part, rows, first, buffer));
    microbatch.positions = positions;
    microbatch.segments = segments;
    microbatch.context = part.context;
    const int64_t all = options.dp_size * b;  // rows of all data ranks
    microbatch.global_tokens = all * seq;
    for (int64_t i = j * all; i < (j + 1) * all; ++i) microbatch.global_targets += rows(i).targets;
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
  ListPart{o};  // throws where rows cannot be cut so
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

#include "core/data/step_source.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"

namespace pptrain::data {

namespace {

std::span<int64_t> part(at::Tensor& list, int64_t first, int64_t count) {
  return std::span(list.mutable_data_ptr<int64_t>(), static_cast<size_t>(list.size(0)))
      .subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

}  // namespace

TokenList::TokenList(const LoaderOptions& options, int64_t size)
    : options_(options),
      tokens_(at::zeros({size}, at::kLong)),
      labels_(at::full({size}, ignore_label, at::kLong)),
      positions_(at::zeros({size}, at::kInt)),
      places_(options.need_places ? at::zeros({size}, at::kLong) : at::Tensor()) {}

std::span<int64_t> TokenList::tokens(int64_t first, int64_t count) {
  return part(tokens_, first, count);
}
std::span<int64_t> TokenList::labels(int64_t first, int64_t count) {
  return part(labels_, first, count);
}

void TokenList::set_places(int64_t first, int64_t count, int64_t place) {
  if (!places_.defined()) return;
  const std::span<int64_t> places = part(places_, first, count);
  std::iota(places.begin(), places.end(), place);
}

void TokenList::add_document(int64_t length, int64_t filling) {
  auto* const first = positions_.mutable_data_ptr<int32_t>() + starts_.back();
  std::iota(first, first + length, 0);
  if (filling > 0) {
    if (!filling_.defined()) filling_ = at::zeros(tokens_.sizes(), at::kBool);
    filling_.narrow(0, starts_.back() + length, filling).fill_(true);
  }
  starts_.push_back(starts_.back() + static_cast<int32_t>(length + filling));
  text_lengths_.push_back(length);
}

Microbatch TokenList::finish(std::shared_ptr<const tokens::ContextSplit> split) {
  Microbatch list;
  if (options_.need_tokens) list.tokens = tokens_;
  if (options_.need_labels) list.labels = labels_;
  list.positions = positions_;
  list.filling = filling_;
  list.places = places_;
  list.segments = tokens::make_segments(std::move(starts_), options_.device);
  if (filling_.defined()) list.text_lengths = std::move(text_lengths_);
  if (split) list = part_of(list, std::move(split));
  for (at::Tensor* tensor : {&list.tokens, &list.labels, &list.positions, &list.filling}) {
    if (tensor->defined()) *tensor = tokens::to_device(*tensor, options_.device);
  }
  return list;
}

namespace {

void check(const LoaderOptions& o) {
  if (o.seq_len < 1 || o.micro_batch_size < 1 || o.microbatches < 1 || o.dp_size < 1 || o.dp_rank < 0 ||
      o.dp_rank >= o.dp_size) {
    throw Error(
        fmt::format("data loader: seq_len {}, micro_batch_size {}, microbatches {}, data rank {} of {} must "
                    "be positive, and the rank below their number",
                    o.seq_len, o.micro_batch_size, o.microbatches, o.dp_rank, o.dp_size));
  }
  if (o.pad_to_multiple_of < 1 || o.tp_size < 1 || o.attention_length < 1) {
    throw Error(
        fmt::format("data loader: pad_to_multiple_of {}, tp_size {}, attention_length {} must be positive",
                    o.pad_to_multiple_of, o.tp_size, o.attention_length));
  }
  // Throws if rows cannot be cut so.
  if (o.cp_size > 1) tokens::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank);
}

// Origin of a row: its first token, and how many targets it would have as one document (0: filling).
struct Row {
  size_t stream = 0;
  int64_t first = 0;
  int64_t given = 0;
};

// Reads one row after the other, of one stream.
class RowReader {
 public:
  RowReader(const TokenDataset& dataset, const std::vector<int64_t>& document_starts,
            const LoaderOptions& options)
      : dataset_(dataset),
        document_starts_(document_starts),
        document_end_(dataset.has_index() ? -1 : options.document_end.value_or(-1)),
        seq_len_(options.seq_len),
        tokens_(static_cast<size_t>(options.seq_len) + 1) {}

  // `for_list`: append_to() follows; otherwise a row is read only if documents are found by their tokens.
  void read(const Row& row, bool for_list) {
    first_ = row.first;
    given_ = static_cast<size_t>(row.given);
    ends_.clear();
    const bool by_tokens = document_end_ >= 0;
    if (given_ > 0 && (for_list || by_tokens)) dataset_.read(row.first, std::span(tokens_).first(given_ + 1));
    for (size_t i = 0; by_tokens && i < given_; ++i) {
      if (tokens_[i] == document_end_) ends_.push_back(static_cast<int64_t>(i) + 1);
    }
    if (by_tokens) return;
    // No position predicts the first token of a document.
    auto start = std::ranges::upper_bound(document_starts_, row.first);
    for (; start != document_starts_.end() && *start <= row.first + row.given; ++start)
      ends_.push_back(*start - row.first);
  }

  // The row read last becomes the list's tokens from `first` on.
  void append_to(TokenList& list, int64_t first) const {
    const std::span<int64_t> tokens = list.tokens(first, seq_len_), labels = list.labels(first, seq_len_);
    const auto given = static_cast<int64_t>(given_);
    std::copy_n(tokens_.begin(), given_, tokens.begin());
    if (given_ > 0) std::copy_n(tokens_.begin() + 1, given_, labels.begin());
    int64_t begin = 0;
    for (const int64_t end : ends_) {
      labels[static_cast<size_t>(end) - 1] = ignore_label;
      list.add_document(end - std::exchange(begin, end));
    }
    dataset_.ignore_prompts(first_ + 1, labels.first(given_));
    list.set_places(first, given, first_ + 1);
    if (begin < seq_len_) list.add_document(given - begin, seq_len_ - given);
  }

  // Targets of the row read last.
  int64_t targets() const {
    const auto given = static_cast<int64_t>(given_);
    return given - std::ssize(ends_) - dataset_.prompt_tokens(first_ + 1, first_ + given + 1);
  }

 private:
  const TokenDataset& dataset_;
  const std::vector<int64_t>& document_starts_;  // of an index
  int64_t document_end_;                         // -1: documents are known otherwise, or rows are documents
  int64_t seq_len_;
  std::vector<int64_t> tokens_;  // of a row, and the one behind it
  int64_t first_ = 0;            // of the row
  size_t given_ = 0;
  std::vector<int64_t>
      ends_;  // in the row: tokens up to the end of each document that ends inside the targets
};

class RowSource final : public StepSource {
 public:
  RowSource(std::vector<TokenDataset> streams, const LoaderOptions& options)
      : streams_(std::move(streams)), options_(options) {
    for (const TokenDataset& stream : streams_)
      document_starts_.push_back(stream.has_index() ? stream.indexed_documents() : std::vector<int64_t>());
    if (options.cp_size > 1) {
      split_ = std::make_shared<const tokens::ContextSplit>(tokens::split_rows(
          options.cp_order, options.micro_batch_size, options.seq_len, options.cp_size, options.cp_rank));
    }
  }

  std::vector<int64_t> checked_samples() const override {
    std::vector<int64_t> samples;
    for (const TokenDataset& stream : streams_) {
      samples.push_back(stream.samples(options_.seq_len));
      if (samples.back() >= 1) continue;
      throw Error(
          fmt::format("data: '{}' has {} tokens for training, but one sample of train.seq_len = {} needs {}",
                      stream.path(), stream.size(), options_.seq_len, options_.seq_len + 1));
    }
    return samples;
  }
  int64_t all_samples() const override {
    return (streams_.front().size() - 1 + options_.seq_len - 1) / options_.seq_len;
  }
  int64_t samples_from(int64_t /*next*/) const override { return options_.rows_per_step(); }

  Step step(int64_t next, const Order& order) const override {
    const int64_t seq = options_.seq_len, own = options_.micro_batch_size, all = options_.dp_size * own;
    const auto row = [&](int64_t i) {
      const Sample sample = order(next + i);
      const int64_t first = sample.index * seq, left = streams_[sample.stream].size() - 1 - first;
      return Row{.stream = sample.stream, .first = first, .given = std::clamp<int64_t>(left, 0, seq)};
    };
    std::vector<RowReader> readers;
    for (size_t i = 0; i < streams_.size(); ++i)
      readers.emplace_back(streams_[i], document_starts_[i], options_);
    Step step{.microbatches = {}, .samples = options_.rows_per_step()};
    step.tokens = step.samples * seq;
    for (int64_t j = 0; j < options_.microbatches; ++j) {
      TokenList list(options_, own * seq);
      int64_t targets = 0;
      for (int64_t i = 0; i < own; ++i) {
        const Row own_row = row(j * all + options_.dp_rank * own + i);
        RowReader& reader = readers[own_row.stream];
        reader.read(own_row, /*for_list=*/true);
        reader.append_to(list, i * seq);
        targets += reader.targets();
      }
      Microbatch& microbatch = step.microbatches.emplace_back(list.finish(split_));
      microbatch.targets = targets;
      for (int64_t i = j * all; i < (j + 1) * all; ++i) {
        const Row any = row(i);
        microbatch.global_tokens += any.given;
        readers[any.stream].read(any, /*for_list=*/false);
        microbatch.global_targets += readers[any.stream].targets();
        step.padding += seq - any.given;
      }
      step.targets += microbatch.global_targets;
    }
    return step;
  }

 private:
  std::vector<TokenDataset> streams_;
  LoaderOptions options_;
  std::vector<std::vector<int64_t>> document_starts_;  // of each stream with an index
  std::shared_ptr<const tokens::ContextSplit> split_;  // null: this rank has whole rows
};

}  // namespace

std::shared_ptr<const StepSource> make_step_source(std::vector<TokenDataset> streams,
                                                   const LoaderOptions& options) {
  check(options);
  if (options.whole_documents()) return make_document_source(std::move(streams), options);
  return std::make_shared<const RowSource>(std::move(streams), options);
}

}  // namespace pptrain::data

#include "core/data/microbatch.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/tokens/segments.h"

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
}

Microbatch TokenList::finish(std::shared_ptr<const tokens::ContextSplit> split) {
  Microbatch list;
  if (options_.need_tokens) list.tokens = tokens_;
  if (options_.need_labels) list.labels = labels_;
  list.positions = positions_;
  list.filling = filling_;
  list.places = places_;
  list.segments = tokens::make_segments(std::move(starts_), options_.device);
  if (split) list = part_of(list, std::move(split));
  for (at::Tensor* tensor : {&list.tokens, &list.labels, &list.positions, &list.filling}) {
    if (tensor->defined()) *tensor = tokens::to_device(*tensor, options_.device);
  }
  return list;
}

namespace {

at::Tensor own_ranges(const at::Tensor& list, const tokens::ContextSplit& split) {
  if (!list.defined()) return {};
  std::vector<at::Tensor> parts;
  for (const tokens::TokenRange& range : split.own()) {
    parts.push_back(list.narrow(0, range.begin, range.length()));
  }
  return parts.empty() ? list.narrow(0, 0, 0) : at::cat(parts);
}

}  // namespace

Microbatch part_of(const Microbatch& whole, std::shared_ptr<const tokens::ContextSplit> split) {
  if (whole.context) throw Error("a microbatch that is split already cannot be split again");
  tokens::check_split(*split, whole.segments.tokens());
  Microbatch part = whole;
  part.tokens = own_ranges(whole.tokens, *split);
  part.labels = own_ranges(whole.labels, *split);
  part.positions = own_ranges(whole.positions, *split);
  part.filling = own_ranges(whole.filling, *split);
  part.places = own_ranges(whole.places, *split);
  part.context = std::move(split);
  return part;
}

std::vector<Microbatch> cut_in_slices(const Microbatch& whole, const LoaderOptions& options, int number) {
  tokens::ContextSplit split =
      tokens::split_by_cost(whole.segments, options.sequence_slices, options.attention_length, number);
  std::vector<Microbatch> slices;
  for (; split.part < split.parts(); ++split.part) {
    Microbatch& slice = slices.emplace_back(part_of(whole, std::make_shared<tokens::ContextSplit>(split)));
    if (split.part > 0) slice.targets = slice.global_tokens = slice.global_targets = 0;
  }
  return slices;
}

tokens::ContextSplit split_list(tokens::ContextOrder order, int64_t tokens, int parts, int part) {
  const bool zigzag = order == tokens::ContextOrder::zigzag;
  const int64_t pieces = zigzag ? 2 * int64_t{parts} : parts;
  if (parts < 1 || part < 0 || part >= parts || tokens < pieces) {
    throw Error(fmt::format("a list of {} tokens does not make {} pieces for rank {} of {}", tokens, pieces,
                            part, parts));
  }
  const auto piece = [&](int64_t number) {
    return tokens::TokenRange{.begin = tokens * number / pieces, .end = tokens * (number + 1) / pieces};
  };
  tokens::ContextSplit split{.part = part, .ranges = {}};
  for (int64_t rank = 0; rank < parts; ++rank) {
    auto& ranges = split.ranges.emplace_back(std::vector{piece(rank)});
    if (!zigzag) continue;
    const tokens::TokenRange late = piece(pieces - 1 - rank);
    if (late.begin == ranges.front().end) {
      ranges.front().end = late.end;
    } else {
      ranges.push_back(late);
    }
  }
  return split;
}

}  // namespace pptrain::data

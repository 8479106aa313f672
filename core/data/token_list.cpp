#include "core/data/token_list.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

#include "core/data/context_part.h"
#include "core/tokens/host_copy.h"

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
      positions_(at::zeros({size}, at::kInt)) {}

std::span<int64_t> TokenList::tokens(int64_t first, int64_t count) {
  return part(tokens_, first, count);
}
std::span<int64_t> TokenList::labels(int64_t first, int64_t count) {
  return part(labels_, first, count);
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
  list.segments = tokens::make_segments(std::move(starts_), options_.device);
  if (split) list = part_of(list, std::move(split));
  for (at::Tensor* tensor : {&list.tokens, &list.labels, &list.positions, &list.filling}) {
    if (tensor->defined()) *tensor = tokens::to_device(*tensor, options_.device);
  }
  return list;
}

}  // namespace pptrain::data

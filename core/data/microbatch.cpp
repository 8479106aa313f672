#include "core/data/microbatch.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "core/base/error.h"

namespace pptrain::data {

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

std::vector<Microbatch> cut_in_slices(const Microbatch& whole, int slices, int64_t attention_length,
                                      int64_t least, int number) {
  tokens::ContextSplit split = tokens::split_by_cost(whole.segments, slices, attention_length, least, number);
  std::vector<Microbatch> cut;
  for (; split.part < split.parts(); ++split.part) {
    Microbatch& slice = cut.emplace_back(part_of(whole, std::make_shared<tokens::ContextSplit>(split)));
    if (split.part > 0) slice.targets = 0;
  }
  return cut;
}

}  // namespace pptrain::data

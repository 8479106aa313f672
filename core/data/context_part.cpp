#include "core/data/context_part.h"

#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/context_plan.h"

namespace pptrain::data {
namespace {

at::Tensor own_ranges(const at::Tensor& list, const kernels::ContextSplit& split) {
  if (!list.defined()) return {};
  std::vector<at::Tensor> parts;
  for (const kernels::TokenRange& range : split.own()) {
    parts.push_back(list.narrow(0, range.begin, range.length()));
  }
  return parts.empty() ? list.narrow(0, 0, 0) : at::cat(parts);
}

}  // namespace

Microbatch part_of(const Microbatch& whole, std::shared_ptr<const kernels::ContextSplit> split) {
  if (whole.context) throw Error("a microbatch that is split already cannot be split again");
  kernels::check_split(*split, whole.segments.tokens());
  Microbatch part = whole;
  part.tokens = own_ranges(whole.tokens, *split);
  part.labels = own_ranges(whole.labels, *split);
  part.positions = own_ranges(whole.positions, *split);
  part.context = std::move(split);
  return part;
}

}  // namespace pptrain::data

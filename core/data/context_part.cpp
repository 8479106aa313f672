#include "core/data/context_part.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>

#include <spdlog/fmt/fmt.h>

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
  part.context = std::move(split);
  return part;
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

#include "core/data/documents.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "core/base/error.h"

namespace pptrain::data {

namespace {

std::vector<int64_t> starts_by_end(const TokenDataset& dataset, int64_t end_id) {
  constexpr int64_t at_once = 1 << 16;
  std::vector<int64_t> starts{0}, ids;
  for (int64_t first = 0; first < dataset.size(); first += at_once) {
    ids.resize(static_cast<size_t>(std::min(at_once, dataset.size() - first)));
    dataset.read(first, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == end_id) starts.push_back(first + static_cast<int64_t>(i) + 1);
    }
  }
  if (starts.back() != dataset.size()) starts.push_back(dataset.size());
  return starts;
}

}  // namespace

std::vector<int64_t> document_starts(const TokenDataset& dataset, std::optional<int64_t> end_id) {
  if (dataset.has_index()) return dataset.indexed_documents();
  if (end_id) return starts_by_end(dataset, *end_id);
  throw Error(
      fmt::format("data: nothing says where the documents of '{}' end: give data.document_end, or files with "
                  "an index (data.format = \"megatron\")",
                  dataset.path()));
}

DocumentSlices::DocumentSlices(const std::vector<int64_t>& document_starts, int64_t longest) {
  starts_.reserve(document_starts.size());
  for (size_t i = 0; i + 1 < document_starts.size(); ++i) {
    starts_.push_back(2 * document_starts[i] + 1);
    for (int64_t first = document_starts[i] + longest; first < document_starts[i + 1]; first += longest)
      starts_.push_back(2 * first);
  }
  starts_.push_back(2 * document_starts.back() + 1);
}

DocumentSlice DocumentSlices::operator[](int64_t index) const {
  const int64_t begin = starts_[static_cast<size_t>(index)], end = starts_[static_cast<size_t>(index) + 1];
  return {.first = begin / 2, .length = end / 2 - begin / 2, .ends = end % 2 == 1};
}

}  // namespace pptrain::data

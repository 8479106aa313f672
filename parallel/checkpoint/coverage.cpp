#include "parallel/checkpoint/coverage.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "core/nn/slice.h"

namespace pptrain::checkpoint {
namespace {

struct StoredSlice {
  const FileEntry* file;
  const TensorEntry* tensor;
};

struct Stretch {
  int64_t begin = 0;  // in elements of the global tensor
  int64_t end = 0;
  const FileEntry* file = nullptr;
};

std::vector<Stretch> stretches(const std::vector<StoredSlice>& slices) {
  std::vector<Stretch> found;
  for (const StoredSlice& stored : slices) {
    for (const nn::ElementRun& run : nn::element_runs(stored.tensor->slice)) {
      found.push_back({run.global, run.global + run.length, stored.file});
    }
  }
  std::ranges::sort(found, {}, &Stretch::begin);
  return found;
}

// Empty where the slices of one tensor are the whole of it, once.
std::string first_gap_or_overlap(const std::vector<StoredSlice>& slices) {
  const int64_t elements = nn::whole_slice(slices.front().tensor->slice.global).numel();
  const auto missing = [&](int64_t begin, int64_t end) {
    return fmt::format("its elements [{}, {}) of {} are stored nowhere", begin, end, elements);
  };
  int64_t position = 0;
  const FileEntry* before = nullptr;
  for (const Stretch& next : stretches(slices)) {
    if (next.begin > position) return missing(position, next.begin);
    if (next.begin < position) {
      return fmt::format("its elements [{}, {}) of {} are stored twice, in {} and in {}", next.begin,
                         std::min(next.end, position), elements, before->path().string(),
                         next.file->path().string());
    }
    position = next.end;
    before = next.file;
  }
  return position == elements ? "" : missing(position, elements);
}

std::string difference(const StoredSlice& first, const StoredSlice& other) {
  const auto [a, b] = std::pair(first.tensor, other.tensor);
  if (a->dtype == b->dtype && a->slice.global == b->slice.global) return "";
  return fmt::format("it is {} in {}, but {} in {}", describe(a->dtype, a->slice.global),
                     first.file->path().string(), describe(b->dtype, b->slice.global),
                     other.file->path().string());
}

// The numbers of the slices: tensors that are cut alike, as those of most layers are, have them alike.
std::vector<int64_t> cut_of(const std::vector<StoredSlice>& slices) {
  std::vector<int64_t> cut;
  for (const StoredSlice& stored : slices) {
    const nn::SliceShape& s = stored.tensor->slice;
    cut.push_back(static_cast<int64_t>(s.global.size()));
    for (const auto* shape : {&s.global, &s.offset, &s.box})
      cut.insert(cut.end(), shape->begin(), shape->end());
    cut.insert(cut.end(), {s.begin, s.end});
  }
  return cut;
}

}  // namespace

std::vector<std::string> coverage_problems(const std::vector<FileEntry>& files) {
  std::map<std::pair<std::string, std::string>, std::vector<StoredSlice>> slices;  // by file kind and name
  for (const FileEntry& file : files) {
    for (const auto& [name, tensor] : file.tensors) slices[{file.file, name}].push_back({&file, &tensor});
  }
  std::vector<std::string> problems;
  std::set<std::vector<int64_t>> proven;  // cuts that are the whole, once
  for (const auto& [key, stored] : slices) {
    std::string problem;
    for (size_t i = 1; i < stored.size() && problem.empty(); ++i) problem = difference(stored[0], stored[i]);
    std::vector<int64_t> cut = cut_of(stored);
    if (problem.empty() && !proven.contains(cut)) problem = first_gap_or_overlap(stored);
    if (problem.empty()) {
      proven.insert(std::move(cut));
    } else {
      problems.push_back(fmt::format("the tensor '{}' of {}: {}", key.second, key.first, problem));
    }
  }
  return problems;
}

}  // namespace pptrain::checkpoint

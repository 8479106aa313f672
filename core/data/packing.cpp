#include "core/data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace pptrain::data {
namespace {

Rows empty_rows(int64_t count) {
  return Rows(static_cast<size_t>(count));
}

Rows one_each(int64_t count, const OfferedLength& offered) {
  Rows rows = empty_rows(count);
  for (int64_t i = 0; i < count && offered(i); ++i) rows[static_cast<size_t>(i)] = {i};
  return rows;
}

Rows one_after_the_other(int64_t count, int64_t capacity, const OfferedLength& offered) {
  Rows rows = empty_rows(count);
  int64_t next = 0;
  for (auto& row : rows) {
    int64_t room = capacity;
    for (auto length = offered(next); length && *length <= room; length = offered(next)) {
      row.push_back(next++);
      room -= *length;
    }
  }
  return rows;
}

// Nothing where the documents need more rows.
std::optional<Rows> best_fit_decreasing(const std::vector<int64_t>& lengths, int64_t count,
                                        int64_t capacity) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t i) { return lengths[static_cast<size_t>(i)]; });
  Rows rows;
  std::set<std::pair<int64_t, size_t>> room;  // of rows in use; of equals the first
  for (const int64_t document : order) {
    const int64_t length = lengths[static_cast<size_t>(document)];
    const auto best = room.lower_bound({length, 0});
    std::pair<int64_t, size_t> left{capacity, rows.size()};
    if (best != room.end()) {
      left = *best;
      room.erase(best);
    } else if (static_cast<int64_t>(rows.size()) == count) {
      return std::nullopt;
    } else {
      rows.emplace_back();
    }
    rows[left.second].push_back(document);
    left.first -= length;
    room.insert(left);
  }
  rows.resize(static_cast<size_t>(count));
  for (auto& row : rows) std::ranges::sort(row);
  return rows;
}

Rows best_fit(int64_t count, int64_t capacity, const OfferedLength& offered) {
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  while (const auto length = offered(static_cast<int64_t>(lengths.size()))) {
    if (tokens + *length > count * capacity) break;
    lengths.push_back(*length);
    tokens += *length;
  }
  size_t packs = std::min(lengths.size(), static_cast<size_t>(count)), fails = lengths.size() + 1;
  const auto first = [&](size_t n) {
    return std::vector(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(n));
  };
  Rows rows = *best_fit_decreasing(first(packs), count, capacity);
  // All of them first: where documents are many and short, they mostly fit.
  for (size_t n = lengths.size(); packs + 1 < fails; n = packs + (fails - packs) / 2) {
    if (auto found = best_fit_decreasing(first(n), count, capacity)) {
      packs = n;
      rows = std::move(*found);
    } else {
      fails = n;
    }
  }
  return rows;
}

}  // namespace

Rows pack(Packing how, int64_t count, int64_t capacity, const OfferedLength& offered) {
  switch (how) {
    case Packing::none:
      return one_each(count, offered);
    case Packing::sequential:
      return one_after_the_other(count, capacity, offered);
    case Packing::best_fit:
      break;
  }
  return best_fit(count, capacity, offered);
}

}  // namespace pptrain::data

#include "core/data/packing.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/data/cheapest_lists.h"

namespace pptrain::data {

namespace {

Rows one_each(int64_t count, const OfferedLength& offered) {
  Rows rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count && offered(i); ++i) rows[static_cast<size_t>(i)] = {i};
  return rows;
}

Rows one_after_the_other(int64_t count, int64_t capacity, const OfferedLength& offered) {
  Rows rows(static_cast<size_t>(count));
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

// Nothing if the documents need more rows.
std::optional<Rows> best_fit_decreasing(const std::vector<int64_t>& lengths, int64_t count,
                                        int64_t capacity) {
  Rows rows;
  std::set<std::pair<int64_t, size_t>> room;  // of rows in use; of equals the first
  for (const int64_t document : largest_first(lengths)) {
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
  // Tries all of them first: if documents are many and short, they mostly fit.
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

namespace {

constexpr size_t considered = 64;  // documents of a row that may be moved: the longest

// A row while documents move: they descend by length.
struct Bin {
  std::vector<int64_t> documents;
  int64_t tokens = 0;
  int64_t cost = 0;
};

class Leveller {
 public:
  Leveller(const std::vector<int64_t>& lengths, int64_t capacity, int64_t attention_length)
      : lengths_(lengths), capacity_(capacity), attention_length_(attention_length) {}

  Rows level(const Rows& rows) const {
    std::vector<Bin> bins = filled(rows);
    if (auto longest_first = by_longest_first(rows.size());
        longest_first && dearest(*longest_first) < dearest(bins)) {
      bins = std::move(*longest_first);
    }
    for (size_t i = 0; i < 4 * bins.size() && improve(bins); ++i) {
    }
    Rows levelled;
    for (Bin& bin : bins) {
      std::ranges::sort(bin.documents);
      levelled.push_back(std::move(bin.documents));
    }
    return levelled;
  }

 private:
  // Moves documents from the costliest row to the cheapest, and perhaps one back.
  struct Exchange {
    size_t given = 0;
    std::optional<size_t> taken;
    int64_t dearer = 0;  // cost of the costlier of the two rows behind it
  };

  int64_t length(int64_t document) const { return lengths_[static_cast<size_t>(document)]; }
  int64_t cost(int64_t length) const { return document_cost(length, attention_length_); }
  bool before(int64_t a, int64_t b) const { return length(a) != length(b) ? length(a) > length(b) : a < b; }

  static int64_t dearest(const std::vector<Bin>& bins) {
    return std::ranges::max_element(bins, {}, &Bin::cost)->cost;
  }

  void put(Bin& bin, int64_t document) const {
    const auto place =
        std::ranges::lower_bound(bin.documents, document, [&](int64_t a, int64_t b) { return before(a, b); });
    bin.documents.insert(place, document);
    bin.tokens += length(document);
    bin.cost += cost(length(document));
  }
  int64_t take(Bin& bin, size_t index) const {
    const int64_t document = bin.documents[index];
    bin.documents.erase(bin.documents.begin() + static_cast<std::ptrdiff_t>(index));
    bin.tokens -= length(document);
    bin.cost -= cost(length(document));
    return document;
  }

  std::vector<Bin> filled(const Rows& rows) const {
    std::vector<Bin> bins(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const int64_t document : rows[i]) put(bins[i], document);
    }
    return bins;
  }

  std::optional<std::vector<Bin>> by_longest_first(size_t count) const {
    std::vector<Bin> bins(count);
    CheapestLists cheapest;
    for (size_t i = 0; i < count; ++i) cheapest.add({.number = i, .room = capacity_});
    for (const int64_t document : largest_first(lengths_)) {
      const CheapestLists::List* const first = cheapest.first(length(document));
      if (first == nullptr) return std::nullopt;
      put(bins[first->number], document);
      cheapest.fill_first(cost(length(document)), length(document));
    }
    return bins;
  }

  std::optional<Exchange> best_exchange(const Bin& from, const Bin& to) const {
    std::optional<Exchange> best;
    const auto consider = [&](size_t given, std::optional<size_t> taken) {
      const int64_t out = length(from.documents[given]), back = taken ? length(to.documents[*taken]) : 0;
      const int64_t moved = cost(out) - (taken ? cost(back) : 0);
      if (moved <= 0 || to.tokens + out - back > capacity_) return;
      const int64_t dearer = std::max(from.cost - moved, to.cost + moved);
      if (dearer < (best ? best->dearer : from.cost)) best = Exchange{given, taken, dearer};
    };
    for (size_t given = 0; given < std::min(considered, from.documents.size()); ++given) {
      if (from.documents.size() > 1) consider(given, std::nullopt);
      for (size_t taken = 0; taken < std::min(considered, to.documents.size()); ++taken)
        consider(given, taken);
    }
    return best;
  }

  bool improve(std::vector<Bin>& bins) const {
    Bin& from = *std::ranges::max_element(bins, {}, &Bin::cost);
    Bin& to = *std::ranges::min_element(bins, {}, &Bin::cost);
    const std::optional<Exchange> exchange = best_exchange(from, to);
    if (!exchange) return false;
    const int64_t given = take(from, exchange->given);
    if (exchange->taken) put(from, take(to, *exchange->taken));
    put(to, given);
    return true;
  }

  const std::vector<int64_t>& lengths_;
  int64_t capacity_;
  int64_t attention_length_;
};

}  // namespace

Rows level_rows(Rows rows, const std::vector<int64_t>& lengths, int64_t capacity, int64_t attention_length) {
  return rows.size() < 2 ? std::move(rows) : Leveller(lengths, capacity, attention_length).level(rows);
}

std::vector<int64_t> largest_first(std::span<const int64_t> values) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](int64_t i) { return values[static_cast<size_t>(i)]; });
  return order;
}

std::vector<std::vector<int64_t>> share_equally(const std::vector<int64_t>& costs, int64_t groups) {
  const auto items = static_cast<int64_t>(costs.size());
  if (groups < 1 || items % groups != 0)
    throw Error(fmt::format("{} items do not make {} groups of as many", items, groups));
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(groups));
  std::set<std::pair<int64_t, size_t>> open;
  for (size_t i = 0; i < shares.size(); ++i) open.emplace(0, i);
  for (const int64_t item : largest_first(costs)) {
    auto [cost, group] = *open.begin();
    open.erase(open.begin());
    shares[group].push_back(item);
    if (static_cast<int64_t>(shares[group].size()) < items / groups)
      open.emplace(cost + costs[static_cast<size_t>(item)], group);
  }
  for (auto& share : shares) std::ranges::sort(share);
  return shares;
}

}  // namespace pptrain::data

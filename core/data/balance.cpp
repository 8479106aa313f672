#include "core/data/balance.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/base/split_mix.h"
#include "core/data/cheapest_lists.h"
#include "core/data/data_loader.h"
#include "core/data/packing.h"

namespace pptrain::data {

namespace {

constexpr int tries = 2048;

struct Spot {
  size_t rank = 0;
  size_t microbatch = 0;
  bool operator==(const Spot&) const = default;
};

// Lists with what the end of a step follows from.
struct TimedLists {
  Lists lists;
  std::vector<std::vector<int64_t>> tokens, squares;  // [data rank][microbatch]
  std::vector<int64_t> ends;                          // [data rank]; of ranks in step one for all

  std::vector<int64_t>& documents(Spot at) { return lists[at.rank][at.microbatch]; }
  int64_t last() const { return std::ranges::max(ends); }
  void add(Spot at, int64_t more_tokens, int64_t more_squares) {
    tokens[at.rank][at.microbatch] += more_tokens;
    squares[at.rank][at.microbatch] += more_squares;
  }
};

class Balancer {
 public:
  Balancer(std::span<const int64_t> lengths, const LoaderOptions& options)
      : lengths_(lengths), o_(options), capacity_(options.micro_batch_size * options.seq_len) {}

  TimedLists timed(Lists lists) const {
    TimedLists step{.lists = std::move(lists), .tokens = {}, .squares = {}, .ends = {}};
    for (const auto& rank : step.lists) {
      auto& tokens = step.tokens.emplace_back();
      auto& squares = step.squares.emplace_back();
      for (const auto& list : rank) {
        tokens.push_back(0);
        squares.push_back(0);
        for (const int64_t document : list) {
          tokens.back() += length(document);
          squares.back() += length(document) * length(document);
        }
      }
    }
    for (size_t rank = 0; rank < (o_.in_step ? 1 : step.lists.size()); ++rank)
      step.ends.push_back(end_of(step, rank));
    return step;
  }

  Lists run(Lists given) {
    TimedLists best = timed(std::move(given));
    deal(best);
    for (int i = 0; i < tries; ++i) change(best);
    for (auto& rank : best.lists) {
      for (auto& list : rank) std::ranges::sort(list);
    }
    return std::move(best.lists);
  }

 private:
  int64_t length(int64_t document) const { return lengths_[static_cast<size_t>(document)]; }

  int64_t end_of(const TimedLists& step, size_t rank) const {
    if (!o_.in_step) return o_.step_end(step.tokens[rank], step.squares[rank]);
    std::vector<int64_t> tokens = step.tokens[0], squares = step.squares[0];
    for (size_t r = 1; r < step.tokens.size(); ++r) {
      for (size_t j = 0; j < tokens.size(); ++j) {
        tokens[j] = std::max(tokens[j], step.tokens[r][j]);
        squares[j] = std::max(squares[j], step.squares[r][j]);
      }
    }
    return o_.step_end(tokens, squares);
  }

  // --- Deals documents to lists anew.

  // First how many small microbatches a step begins with, then how many it ends with.
  void deal(TimedLists& best) const {
    const size_t most = best.lists[0].size() / 2;
    size_t front = 0;
    for (const bool at_end : {false, true}) {
      size_t better = front;
      for (size_t ramp = at_end ? 1 : 0; ramp <= most; ramp = std::max<size_t>(1, 2 * ramp)) {
        auto lists = at_end ? dealt(best.lists, front, ramp) : dealt(best.lists, ramp, 0);
        if (!lists) continue;
        TimedLists step = timed(*std::move(lists));
        if (step.last() >= best.last()) continue;
        best = std::move(step);
        if (!at_end) better = ramp;
      }
      front = better;
    }
  }

  // Deals documents to lists as large as those of `shape`: the longest document that is left goes to the list
  // that then costs least for its size. The first `front` lists of a data rank grow in size, the last `back`
  // ones shrink. Nothing if this runs out of room or leaves a list empty.
  std::optional<Lists> dealt(const Lists& shape, size_t front, size_t back) const {
    const size_t ranks = shape.size(), count = shape[0].size();
    std::map<int64_t, CheapestLists> by_size;
    constexpr int64_t whole = 1 << 10;
    for (size_t list = 0; list < ranks * count; ++list) {
      const size_t j = list / ranks;
      const auto part = [&](size_t place, size_t of) {
        return whole * static_cast<int64_t>(std::min(place, of)) / static_cast<int64_t>(of);
      };
      by_size[std::min(part(j + 1, front + 1), part(count - j, back + 1))].add(
          {.number = list, .room = capacity_});
    }
    Lists lists(ranks, std::vector<std::vector<int64_t>>(count));
    for (const int64_t document : largest_first(lengths_)) {
      CheapestLists* const best = place_for(document, by_size);
      if (best == nullptr) return std::nullopt;
      const size_t list = best->first(length(document))->number;
      best->fill_first(cost(document), length(document));
      lists[list % ranks][list / ranks].push_back(document);
    }
    for (const auto& rank : lists) {
      if (std::ranges::any_of(rank, [](const auto& list) { return list.empty(); })) return std::nullopt;
    }
    return lists;
  }

  int64_t cost(int64_t document) const { return document_cost(length(document), o_.attention_length); }

  // Those of one size, whose first list is to get the document; null if none has room.
  CheapestLists* place_for(int64_t document, std::map<int64_t, CheapestLists>& by_size) const {
    CheapestLists* best = nullptr;
    int64_t least = 0, best_size = 0;
    for (auto& [size, lists] : by_size) {
      const CheapestLists::List* const first = lists.first(length(document));
      if (first == nullptr) continue;
      const int64_t filled = first->cost + cost(document);
      if (best != nullptr && filled * best_size >= least * size) continue;
      least = filled;
      best_size = size;
      best = &lists;
    }
    return best;
  }

  // --- Small changes.

  void change(TimedLists& step) {
    const size_t ranks = step.lists.size(), count = step.lists[0].size();
    const size_t slowest = o_.in_step
                               ? random_.below(ranks)
                               : static_cast<size_t>(std::ranges::max_element(step.ends) - step.ends.begin());
    const size_t kind = random_.below<size_t>(4);
    const Spot a{slowest, random_.below(count)};
    const Spot b{random_.below(2) == 0 ? slowest : random_.below(ranks), random_.below(count)};
    if (a == b) return;
    if (kind == 0) return change_places(step, a, b);
    if (kind == 1) return exchange(step, a, b);
    if (kind == 2) return give(step, a, b);
    give(step, b, a);
  }

  void change_places(TimedLists& step, Spot a, Spot b) const {
    const int64_t tokens = step.tokens[a.rank][a.microbatch] - step.tokens[b.rank][b.microbatch];
    const int64_t squares = step.squares[a.rank][a.microbatch] - step.squares[b.rank][b.microbatch];
    if (moves(step, a, b, tokens, squares)) std::swap(step.documents(a), step.documents(b));
  }

  void exchange(TimedLists& step, Spot a, Spot b) {
    std::vector<int64_t>&from = step.documents(a), &to = step.documents(b);
    int64_t &given = from[random_.below(from.size())], &taken = to[random_.below(to.size())];
    const int64_t out = length(given), in = length(taken);
    if (out != in && moves(step, a, b, out - in, out * out - in * in)) std::swap(given, taken);
  }

  void give(TimedLists& step, Spot a, Spot b) {
    std::vector<int64_t>& from = step.documents(a);
    int64_t& given = from[random_.below(from.size())];
    const int64_t out = length(given);
    if (from.size() == 1 || !moves(step, a, b, out, out * out)) return;
    step.documents(b).push_back(given);
    given = from.back();
    from.pop_back();
  }

  // Counts so much less at `a` and more at `b`, unless that runs out of room or the slower of the two ends
  // later than both did.
  bool moves(TimedLists& step, Spot a, Spot b, int64_t tokens, int64_t squares) const {
    if (step.tokens[a.rank][a.microbatch] - tokens > capacity_) return false;
    if (step.tokens[b.rank][b.microbatch] + tokens > capacity_) return false;
    step.add(a, -tokens, -squares);
    step.add(b, tokens, squares);
    int64_t &of_a = step.ends[o_.in_step ? 0 : a.rank], &of_b = step.ends[o_.in_step ? 0 : b.rank];
    const int64_t before = std::max(of_a, of_b);
    const int64_t new_a = end_of(step, a.rank);
    if (new_a <= before) {
      const int64_t new_b = o_.in_step || a.rank == b.rank ? new_a : end_of(step, b.rank);
      if (new_b <= before) {
        of_a = new_a;
        of_b = new_b;
        return true;
      }
    }
    step.add(a, tokens, squares);
    step.add(b, -tokens, -squares);
    return false;
  }

  std::span<const int64_t> lengths_;
  const LoaderOptions& o_;
  int64_t capacity_;  // tokens of a microbatch
  Random random_{0};
};

}  // namespace

int64_t last_end(std::span<const int64_t> lengths, const LoaderOptions& options, const Lists& lists) {
  return Balancer(lengths, options).timed(lists).last();
}

Lists balanced(std::span<const int64_t> lengths, const LoaderOptions& options, Lists lists) {
  return Balancer(lengths, options).run(std::move(lists));
}

}  // namespace pptrain::data

// Deals documents, the longest first, each to the list that costs least of those that have room for it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <tuple>

namespace pptrain::data {

// Documents come in descending lengths, so a list without room waits until documents are short enough for it.
// n documents over m lists take O((n + m) log m).
class CheapestLists {
 public:
  struct List {
    int64_t cost = 0;
    size_t number = 0;
    int64_t room = 0;  // tokens
    auto operator<=>(const List&) const = default;
  };

  void add(const List& list) { ready_.insert(list); }

  // The cheapest list with room for a document of this length, the first of several; null if none has any.
  // Valid until the next call.
  const List* first(int64_t length) {
    while (!waiting_.empty() && std::get<0>(*waiting_.rbegin()) >= length) {
      const auto [room, cost, number] = *waiting_.rbegin();
      waiting_.erase(std::prev(waiting_.end()));
      ready_.insert({.cost = cost, .number = number, .room = room});
    }
    while (!ready_.empty() && ready_.begin()->room < length) {
      const List list = *ready_.begin();
      ready_.erase(ready_.begin());
      waiting_.emplace(list.room, list.cost, list.number);
    }
    return ready_.empty() ? nullptr : &*ready_.begin();
  }

  // The list that first() returned gets a document.
  void fill_first(int64_t cost, int64_t length) {
    List list = *ready_.begin();
    ready_.erase(ready_.begin());
    list.cost += cost;
    list.room -= length;
    ready_.insert(list);
  }

 private:
  std::set<List> ready_;                                    // by cost
  std::set<std::tuple<int64_t, int64_t, size_t>> waiting_;  // room, cost, number
};

}  // namespace pptrain::data

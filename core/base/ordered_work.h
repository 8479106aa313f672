// Work on a sequence by several threads, whose results come out in the order of the sequence.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace pptrain {

// `next` gives one item after the other, or nothing at the end; `work` makes a result of an item; `take` gets
// the results in the order of the items. `next` and `take` are called by one thread at a time (each of them;
// by any thread), `work` by as many as there are threads. At most 4 results a thread wait to be taken.
template <typename Item, typename Result>
class OrderedWork {
 public:
  using Next = std::function<std::optional<Item>()>;
  using Step = std::function<Result(const Item&)>;
  using Take = std::function<void(const Result&)>;

  OrderedWork(Next next, Step work, Take take)
      : next_(std::move(next)), work_(std::move(work)), take_(std::move(take)) {}

  // Returns when all is taken. Throws the first exception of any thread, after which nothing is taken.
  void run(int threads) {
    threads_ = threads;
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([this] { loop(); });
    loop();
    for (std::thread& thread : others) thread.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void loop() {
    try {
      while (const auto item = draw()) {
        if (!give(item->first, work_(item->second))) return;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      taken_.notify_all();
    }
  }

  std::optional<std::pair<int64_t, Item>> draw() {
    const std::lock_guard lock(next_mutex_);
    std::optional<Item> item = next_();
    if (!item) return std::nullopt;
    return std::pair(drawn_++, std::move(*item));
  }

  // Hands on what is next in order. Waits if too many earlier results are missing. Returns whether to go on.
  bool give(int64_t number, Result result) {
    std::unique_lock lock(mutex_);
    waiting_.emplace(number, std::move(result));
    while (!failure_ && !waiting_.empty() && waiting_.begin()->first == first_) {
      take_(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      ++first_;
      taken_.notify_all();
    }
    taken_.wait(lock, [&] { return failure_ || number < first_ + 4 * threads_; });
    return !failure_;
  }

  Next next_;
  Step work_;
  Take take_;
  int threads_ = 1;

  std::mutex next_mutex_;
  int64_t drawn_ = 0;

  std::mutex mutex_;  // of all below
  std::condition_variable taken_;
  std::map<int64_t, Result> waiting_;
  int64_t first_ = 0;  // the next to be taken
  std::exception_ptr failure_;
};

}  // namespace pptrain

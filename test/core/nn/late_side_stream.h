// A side stream that runs as late as possible.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "core/nn/weight_grad_queue.h"

namespace pptrain::test {

// A body runs only when a caller waits for it. Code that writes to its operands meanwhile, or reads its
// results without waiting, gets other values.
class LateSideStream final : public nn::SideStream {
 public:
  Mark run(const std::function<void()>& body) override {
    waiting_.push_back(body);
    return joined_ + static_cast<Mark>(waiting_.size());
  }
  void join(Mark mark) override {
    for (; joined_ < mark; ++joined_) {
      waiting_.front()();
      waiting_.pop_front();
      ++ran_;
    }
  }
  size_t waiting() const { return waiting_.size(); }
  size_t ran() const { return ran_; }

 private:
  std::deque<std::function<void()>> waiting_;
  Mark joined_ = 0;
  size_t ran_ = 0;
};

}  // namespace pptrain::test

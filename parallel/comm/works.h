// Handles that are made of others, or of nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// What was complete when it was started.
class DoneWork final : public Work {
 public:
  bool done() override { return true; }
  void wait(const std::function<std::string()>& /*what*/) override {}
  bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }
};

// Complete when all of `works` are.
class AllWorks final : public Work {
 public:
  explicit AllWorks(std::vector<std::unique_ptr<Work>> works) : works_(std::move(works)) {}

  bool done() override {
    for (const auto& work : works_) {
      if (!work->done()) return false;
    }
    return true;
  }
  void wait(const std::function<std::string()>& what) override {
    for (const auto& work : works_) work->wait(what);
  }
  bool wait_for(std::chrono::milliseconds time) override {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + time;
    for (const auto& work : works_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      if (!work->wait_for(std::max(left, std::chrono::milliseconds(0)))) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

}  // namespace pptrain::comm

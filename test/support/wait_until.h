#pragma once

#include <chrono>
#include <thread>

namespace pptrain::test {

// Asks `done` repeatedly; returns whether it becomes true within `patience`.
template <typename Done>
bool wait_until(Done&& done, std::chrono::seconds patience = std::chrono::seconds(120)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return done();
}

}  // namespace pptrain::test

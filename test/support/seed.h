// The seeds of tests with random inputs, in one place.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace pptrain::test {

// The choice of the tests' inputs: 0, or PPTRAIN_TEST_SEED.
inline uint32_t chosen_seed() {
  static const uint32_t chosen = [] {
    const char* const text = std::getenv("PPTRAIN_TEST_SEED");
    return text == nullptr ? uint32_t{0} : static_cast<uint32_t>(std::stoul(text));
  }();
  return chosen;
}

// `usual` if the variable is unset, otherwise a seed from another thousand.
inline uint32_t seed(uint32_t usual) {
  return usual + 1000 * chosen_seed();
}

}  // namespace pptrain::test

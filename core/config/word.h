// Options whose values are words, as enums: the program compares enums, files hold words.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::config {

enum class Device { cpu, cuda };
enum class Dtype { bf16, fp32 };
enum class Init { random, hf };
// How context-parallel ranks share out attention: keys and values travel around a ring of ranks, or heads are
// exchanged for tokens (Ulysses).
enum class ContextKind { ring, ulysses };
enum class ReduceGradients { step, microbatch };
enum class BadLines { refuse, skip };

// The words of an enum's values, in their order.
template <class E>
inline constexpr std::array<std::string_view, 0> words{};
template <>
inline constexpr std::array words<Device> = std::to_array<std::string_view>({"cpu", "cuda"});
template <>
inline constexpr std::array words<Dtype> = std::to_array<std::string_view>({"bf16", "fp32"});
template <>
inline constexpr std::array words<Init> = std::to_array<std::string_view>({"random", "hf"});
template <>
inline constexpr std::array words<ContextKind> = std::to_array<std::string_view>({"ring", "ulysses"});
template <>
inline constexpr std::array words<ReduceGradients> = std::to_array<std::string_view>({"step", "microbatch"});
template <>
inline constexpr std::array words<BadLines> = std::to_array<std::string_view>({"refuse", "skip"});

// A value of E that the loader reads and writes as text. `text` is always one of E's words: the loader takes
// no other.
template <class E>
struct Word {
  std::string text;

  Word(E value) : text(words<E>[static_cast<size_t>(value)]) {}
  operator E() const {
    return static_cast<E>(std::ranges::find(words<E>, std::string_view(text)) - words<E>.begin());
  }
  friend bool operator==(const Word& a, const Word& b) { return a.text == b.text; }
  friend bool operator==(const Word& a, E b) { return E(a) == b; }
};

template <class E>
std::vector<std::string> words_of() {
  return {words<E>.begin(), words<E>.end()};
}

}  // namespace pptrain::config

// Damaged inputs, the same on every machine: the part of a fuzzer's work that fits into a test of seconds.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::fuzz {

class Mutator {
 public:
  // `corpus`: sound inputs, at least one.
  Mutator(std::vector<std::string> corpus, uint64_t seed) : corpus_(std::move(corpus)), random_(seed) {}

  // An input of the corpus with one to four changes: bits, integers at the edges of their types (as text and
  // as bytes), pieces erased, doubled or moved in from another input, the end cut off.
  std::string next();

 private:
  uint64_t below(uint64_t bound) { return random_() % bound; }  // bound > 0
  size_t place(const std::string& text) { return below(text.size() + 1); }
  const std::string& any() { return corpus_[below(corpus_.size())]; }
  std::string piece_of(const std::string& text);
  void change(std::string& text);
  void change_number(std::string& text);
  void change_bytes(std::string& text);

  std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

}  // namespace pptrain::fuzz

#include "test/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace pptrain::fuzz {
namespace {

constexpr std::array<uint64_t, 16> edges = {0,
                                            1,
                                            2,
                                            0x7f,
                                            0xff,
                                            0x7fff,
                                            0xffff,
                                            (1 << 24),
                                            0x7fffffff,
                                            0x80000000,
                                            0xffffffff,
                                            uint64_t{1} << 53,
                                            uint64_t{1} << 62,
                                            0x7fffffffffffffff,
                                            0x8000000000000000,
                                            0xffffffffffffffff};
constexpr std::array<std::string_view, 12> words = {
    "-1",   "1e999", "-0", "0.5", "18446744073709551616",   "1e308", "true",
    "null", "\"\"",  "[]", "{}",  std::string_view("\0", 1)};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

std::string Mutator::next() {
  std::string text = any();
  for (uint64_t changes = 1 + below(4); changes > 0; --changes) change(text);
  return text;
}

std::string Mutator::piece_of(const std::string& text) {
  const size_t begin = place(text);
  return text.substr(begin, below(64));
}

void Mutator::change(std::string& text) {
  switch (below(9)) {
    case 0:
    case 1:
      return change_number(text);
    case 2:
      return change_bytes(text);
    case 3:
      text.insert(place(text), piece_of(any()));
      return;
    case 4:
      text.insert(place(text), words[below(words.size())]);
      return;
    case 5:
      text.erase(place(text), below(32));
      return;
    case 6:
      text.insert(place(text), piece_of(text));
      return;
    case 7:
      if (!text.empty()) text[below(text.size())] ^= static_cast<char>(1 << below(8));
      return;
    default:
      if (below(4) == 0) text.resize(place(text));
  }
}

// Replaces a number in digits by another.
void Mutator::change_number(std::string& text) {
  const auto begin =
      std::find_if(text.begin() + static_cast<std::ptrdiff_t>(place(text)), text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  if (begin == end) return;
  const std::string number =
      below(4) == 0 ? std::string(words[below(words.size())]) : std::to_string(edges[below(edges.size())]);
  text.replace(begin, end, number);
}

void Mutator::change_bytes(std::string& text) {
  const uint64_t value = edges[below(edges.size())];
  const size_t size = size_t{1} << below(4);
  if (text.size() < size) return;
  std::memcpy(text.data() + below(text.size() - size + 1), &value, size);
}

}  // namespace pptrain::fuzz

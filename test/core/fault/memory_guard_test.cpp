#include "core/fault/memory_guard.h"

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using pptrain::fault::MemoryGuard;
using pptrain::fault::sum_of_words;

namespace {

void flip(const at::Tensor& tensor, int64_t bit) {
  auto* const bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (1U << (bit % 8)));
}

// The sum, word by word.
uint64_t plain_sum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    sum += static_cast<uint64_t>(std::to_integer<uint8_t>(bytes[i])) << (8 * (i % 8));
  return sum;
}

}  // namespace

TEST_CASE("the sum is that of the 64-bit words, whatever the length") {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(300);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const std::span part = std::span(bytes).first(size);
    REQUIRE(sum_of_words(part) == plain_sum(part));
  }
}

TEST_CASE("every flipped bit is found, in the tensor that it is in") {
  const at::Tensor first = at::arange(0, 67, at::kFloat), second = at::zeros({5, 3});
  MemoryGuard guard;
  guard.watch("first", first);
  guard.watch("second", second);
  CHECK_FALSE(guard.find_change());
  guard.note();
  for (const auto& [name, tensor] : {std::pair("first", first), std::pair("second", second)}) {
    for (int64_t bit = 0; bit < static_cast<int64_t>(tensor.nbytes()) * 8; ++bit) {
      flip(tensor, bit);
      REQUIRE(guard.find_change() == name);
      flip(tensor, bit);
    }
  }
  CHECK_FALSE(guard.find_change());
}

TEST_CASE("any number of flips within one word is found, and large tensors are summed whole") {
  const at::Tensor tensor = at::zeros({3'000'001});
  MemoryGuard guard;
  guard.watch("large", tensor);
  guard.note();
  std::mt19937_64 random(2);
  for (int i = 0; i < 50; ++i) {
    const auto word = static_cast<int64_t>(random() % 1'500'000);
    const uint64_t bits = random() | 1;
    for (int64_t bit = 0; bit < 64; ++bit) {
      if ((bits >> bit & 1) != 0) flip(tensor, word * 64 + bit);
    }
    REQUIRE(guard.find_change() == "large");
    guard.note();  // the present contents are right
    REQUIRE_FALSE(guard.find_change());
  }
  flip(tensor, static_cast<int64_t>(tensor.nbytes()) * 8 - 1);
  CHECK(guard.find_change() == "large");
}

TEST_CASE("what cannot be summed is refused") {
  MemoryGuard guard;
  CHECK_THROWS_AS(guard.watch("columns", at::zeros({4, 4}).t()), pptrain::Error);
  CHECK_THROWS_AS(guard.watch("bytes", at::zeros({4}, at::kByte)), pptrain::Error);
}

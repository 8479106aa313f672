// Values that must stay as they are for a while: finds a bit that flips in them (a failing memory module, a
// stray write) before they are used further.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pptrain::fault {

// The sum, modulo 2^64, of the bytes as 64-bit words. It is another one after any change within one aligned
// word of 8 bytes; changes of several words stay unseen only if their differences add up to zero.
uint64_t sum_of_words(std::span<const std::byte> bytes);

// Sums of tensors, kept while nothing may write to them. One pass over the bytes for note() and one for
// find_change().
class MemoryGuard {
 public:
  // tensor: contiguous, of elements of 2 or 4 bytes, on any device. Its memory is looked at from now on.
  void watch(std::string name, at::Tensor tensor);

  // From here on the values are to stay as they are.
  void note() { sums_ = sums(); }
  // The first tensor that is not as it was when note() was called; nothing if all are, or none was noted.
  std::optional<std::string> find_change() const;

 private:
  std::vector<uint64_t> sums() const;

  std::vector<std::string> names_;
  std::vector<at::Tensor> tensors_;
  std::vector<uint64_t> sums_;  // as noted; empty: none was
};

}  // namespace pptrain::fault

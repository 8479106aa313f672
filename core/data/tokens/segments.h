// The places of the documents in a token list. A microbatch is one list of tokens; tokens attend only within
// their own document.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace pptrain::tokens {

// `host`: a CPU tensor -> the same on `device`, in the order of its current stream; the host does not wait.
// On the CPU it is the tensor itself.
at::Tensor to_device(const at::Tensor& host, at::Device device);

// Document d is the tokens [host_starts[d], host_starts[d + 1]). Made by make_segments or equal_segments; of
// no documents at first.
struct Segments {
  at::Tensor starts;                    // int32 [documents + 1], ascending from 0 to the number of tokens
  std::vector<int32_t> host_starts{0};  // the same numbers, for the host
  int64_t longest = 0;                  // tokens of the longest document

  int64_t documents() const { return static_cast<int64_t>(host_starts.size()) - 1; }
  int64_t tokens() const { return host_starts.back(); }
  int64_t first(int64_t document) const { return host_starts[static_cast<size_t>(document)]; }
  int64_t length(int64_t document) const { return first(document + 1) - first(document); }
  // All documents are as long as the longest: the tokens can be viewed as [documents, longest].
  bool equal_lengths() const { return documents() * longest == tokens(); }
};

// `starts` holds a number more than there are documents, at least two. On the meta device the tensor has no
// values. Throws Error unless the numbers begin at 0 and ascend strictly.
Segments make_segments(std::vector<int32_t> starts, at::Device device);

// `documents` of `length` tokens each: 0, length, 2 length, ... Throws Error unless both are positive and all
// tokens can be counted in int32.
Segments equal_segments(int64_t documents, int64_t length, at::Device device);

}  // namespace pptrain::tokens

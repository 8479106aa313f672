// Which elements of a parameter one rank answers for: what optimizer, gradient norm, checkpoint and Hugging
// Face files know of a layout.
#pragma once

#include <cstdint>
#include <vector>

namespace pptrain::nn {

// A part of a global tensor: a box, which tensor and expert parallelism cut out of it, and a range of the
// box's elements in row-major order, which sharded data parallelism cuts out of the box.
struct SliceShape {
  std::vector<int64_t> global;  // shape of the whole parameter
  std::vector<int64_t> offset;  // where the box begins in it, per dim
  std::vector<int64_t> box;     // shape of the box
  int64_t begin = 0;            // the range, in elements of the box
  int64_t end = 0;

  int64_t numel() const { return end - begin; }
  bool covers_box() const;  // the range is the whole box
  bool is_whole() const;    // ... and the box the whole parameter
  friend bool operator==(const SliceShape&, const SliceShape&) = default;
};

// Throws Error for a box outside the global tensor or a range outside the box.
void check_slice(const SliceShape& slice);

// All of a parameter.
SliceShape whole_slice(std::vector<int64_t> global);

// Elements that follow each other in the global tensor (row-major) and in the slice alike. Of a list of rows
// and a part of it: rows.
struct ElementRun {
  int64_t global = 0;  // of the first one, in elements of the global tensor
  int64_t local = 0;   // of the first one, in elements of the slice
  int64_t length = 0;
  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

// The slice as runs, ascending and as long as can be: one run unless a dim other than the first is cut.
// Throws Error as check_slice does.
std::vector<ElementRun> element_runs(const SliceShape& slice);

}  // namespace pptrain::nn

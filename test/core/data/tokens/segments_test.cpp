#include "core/data/tokens/segments.h"

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using tokens::Segments;

TEST_CASE("segments tell where documents lie, on the host and on the device", "[tokens]") {
  const Segments s = tokens::make_segments({0, 3, 4, 9}, at::kCPU);
  CHECK(s.documents() == 3);
  CHECK(s.tokens() == 9);
  CHECK(s.longest == 5);
  CHECK(s.first(1) == 3);
  CHECK(s.length(1) == 1);
  CHECK_FALSE(s.equal_lengths());
  CHECK(test::same_bits(s.starts, at::tensor({0, 3, 4, 9}, at::kInt)));
  // The longest is not the last, and a length repeats.
  CHECK(tokens::make_segments({0, 5, 7, 9}, at::kCPU).longest == 5);
  CHECK(tokens::make_segments({0, 7}, at::kCPU).equal_lengths());
}

TEST_CASE("equal segments are multiples of the length", "[tokens]") {
  const Segments s = tokens::equal_segments(4, 6, at::kCPU);
  CHECK(s.host_starts == std::vector<int32_t>{0, 6, 12, 18, 24});
  CHECK(s.longest == 6);
  CHECK(s.equal_lengths());
  const Segments meta = tokens::equal_segments(4, 6, at::kMeta);
  CHECK(meta.starts.is_meta());
  CHECK(meta.starts.sizes() == at::IntArrayRef{5});
  CHECK(meta.host_starts == s.host_starts);
}

TEST_CASE("starts that are no list of documents are refused", "[tokens]") {
  for (const std::vector<int32_t>& bad :
       {std::vector<int32_t>{}, {0}, {1, 4}, {0, 4, 4}, {0, 5, 4}, {0, -1}}) {
    CHECK_THROWS_AS(tokens::make_segments(bad, at::kCPU), Error);
  }
  CHECK_THROWS_AS(tokens::equal_segments(0, 4, at::kCPU), Error);
  CHECK_THROWS_AS(tokens::equal_segments(4, 0, at::kCPU), Error);
  CHECK_THROWS_AS(tokens::equal_segments(1 << 16, 1 << 15, at::kCPU), Error);
}

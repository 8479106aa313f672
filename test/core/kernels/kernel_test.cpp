// The table of kernels itself: which implementation a call reaches, and the message for a missing one.
#include "core/kernels/kernel.h"

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::BackEnd;

namespace {

void check_fill(const kernels::Checks& checks, const Tensor& x, int64_t value) {
  checks.compute("x", x, 1).require(value >= 0, "value must not be negative");
}

void fill(Tensor& x, int64_t value) {
  x.fill_(value);
}

}  // namespace

TEST_CASE("a kernel checks its arguments and runs where its tensors lie", "[kernels]") {
  kernels::Kernel<void(Tensor&, int64_t)> kernel{"fill"};
  kernel.accept(check_fill);
  Tensor x = at::zeros({3});
  CHECK_THROWS_WITH(kernel(x, 1), contains_text("fill") && contains_text("no implementation for the CPU"));
  kernel.implement(BackEnd::cpu, fill);
  kernel(x, 7);
  CHECK(x.sum().item<float>() == 21);
  CHECK(kernel.implementation(BackEnd::cpu) == fill);
  CHECK_THROWS_AS(kernel.implementation(BackEnd::cuda), Error);
  CHECK_THROWS_WITH(kernel(x, -1), contains_text("kernel fill: value must not be negative"));
  x = at::zeros({3, 1});
  CHECK_THROWS_WITH(kernel(x, 1), contains_text("kernel fill: x must have 1 dims"));
  Tensor none;
  CHECK_THROWS_WITH(kernel(none, 1), contains_text("kernel fill: the first argument is missing"));
}

TEST_CASE("kernels of kernels.h are defined before the first call", "[kernels]") {
  CHECK(kernels::linear.implementation(BackEnd::cpu) != nullptr);
  CHECK(kernels::add_squares.implementation(BackEnd::cpu) != nullptr);
}

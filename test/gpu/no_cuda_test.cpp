#include "core/kernels/kernels.h"
#include "test/support/catch.h"

TEST_CASE("a build without CUDA refuses CUDA tensors and says what to do") {
  namespace kernels = pptrain::kernels;
  CHECK_THROWS_WITH(
      kernels::swiglu.implementation(kernels::BackEnd::cuda),
      pptrain::test::contains_text("built without CUDA") && pptrain::test::contains_text("run.device"));
}

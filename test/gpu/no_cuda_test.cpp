#include <ATen/ops/empty.h>

#include <string>

#include "core/base/error.h"
#include "core/kernels/backend.h"
#include "test/support/catch.h"

TEST_CASE("a build without CUDA refuses CUDA tensors and says what to do") {
  at::Tensor y = at::empty({1, 2});
  try {
    pptrain::kernels::cuda::swiglu(at::empty({1, 4}), y);
    FAIL("swiglu returned");
  } catch (const pptrain::Error& error) {
    CHECK(std::string(error.what()).find("built without CUDA") != std::string::npos);
    CHECK(std::string(error.what()).find("run.device") != std::string::npos);
  }
}

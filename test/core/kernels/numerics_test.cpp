#include "core/kernels/numerics.h"

#include <ATen/Context.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "test/support/catch.h"

using namespace pptrain;

namespace {

constexpr const char* kVariable = "CUBLAS_WORKSPACE_CONFIG";

std::optional<std::string> variable() {
  const char* value = std::getenv(kVariable);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Restores LibTorch and the environment.
class Restored {
 public:
  ~Restored() {
    at::globalContext().setDeterministicAlgorithms(deterministic_, warn_only_);
    at::globalContext().setDeterministicFillUninitializedMemory(fill_);
    at::globalContext().setSDPUseCuDNN(cudnn_attention_);
    before_ ? setenv(kVariable, before_->c_str(), 1) : unsetenv(kVariable);
  }

 private:
  bool deterministic_ = at::globalContext().deterministicAlgorithms();
  bool warn_only_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool fill_ = at::globalContext().deterministicFillUninitializedMemory();
  bool cudnn_attention_ = at::globalContext().userEnabledCuDNNSDP();
  std::optional<std::string> before_ = variable();
};

}  // namespace

TEST_CASE("set_numerics: LibTorch's flags on a GPU, nothing on the CPU", "[kernels]") {
  const Restored restored;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicFillUninitializedMemory(true);
  unsetenv(kVariable);

  kernels::set_numerics(/*cuda=*/false, /*deterministic=*/true);
  CHECK_FALSE(context.deterministicAlgorithms());
  CHECK(context.deterministicFillUninitializedMemory());
  CHECK_FALSE(variable());

  kernels::set_numerics(/*cuda=*/true, /*deterministic=*/true);
  CHECK(context.deterministicAlgorithms());
  CHECK_FALSE(context.deterministicAlgorithmsWarnOnly());
  CHECK_FALSE(context.deterministicFillUninitializedMemory());
  CHECK(variable() == ":4096:8");

  SECTION("the user's workspaces stay") {
    setenv(kVariable, ":16:8", 1);
    kernels::set_numerics(true, true);
    CHECK(variable() == ":16:8");
  }
  SECTION("the fastest") {
    unsetenv(kVariable);
    kernels::set_numerics(true, false);
    CHECK_FALSE(context.deterministicAlgorithms());
    CHECK_FALSE(variable());
  }
  CHECK_FALSE(context.userEnabledCuDNNSDP());
}

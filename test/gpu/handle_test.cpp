#include "core/base/cuda_handle.h"

#include <utility>
#include <vector>

#include "test/support/catch.h"

namespace {

std::vector<int> destroyed;
int destroy(int handle) {
  destroyed.push_back(handle);
  return 0;
}
using Handle = pptrain::CudaHandle<int, destroy>;

}  // namespace

TEST_CASE("CudaHandle destroys exactly once what it owns") {
  destroyed.clear();
  {
    Handle empty;
    CHECK_FALSE(empty);
    Handle first(1);
    Handle moved(std::move(first));
    CHECK_FALSE(first);
    CHECK(moved.get() == 1);
    Handle second(2);
    moved = std::move(second);
    CHECK(destroyed == std::vector<int>{1});
    *moved.receive() = 3;
    CHECK(destroyed == std::vector<int>{1, 2});
    Handle released(9);
    CHECK(released.release() == 9);
  }
  CHECK(destroyed == std::vector<int>{1, 2, 3});
}

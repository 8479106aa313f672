#include "test/support/ops.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

namespace pptrain::test {

at::Tensor cat(const std::vector<at::Tensor>& parts, int64_t dim) {
  return at::cat(parts, dim);
}

at::Tensor stack(const std::vector<at::Tensor>& parts, int64_t dim) {
  return at::stack(parts, dim);
}

}  // namespace pptrain::test

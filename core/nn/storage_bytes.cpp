#include "core/nn/storage_bytes.h"

#include <set>

namespace pptrain::nn {

int64_t storage_bytes(std::span<const at::Tensor> tensors) {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      bytes += static_cast<int64_t>(tensor.storage().nbytes());
    }
  }
  return bytes;
}

}  // namespace pptrain::nn

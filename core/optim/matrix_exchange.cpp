#include "core/optim/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"

namespace pptrain::optim {

LocalMatrices::LocalMatrices(std::vector<MatrixPart> parts) : parts_(std::move(parts)) {
  for (const MatrixPart& part : parts_) {
    if (!part.shape.is_whole())
      throw Error(fmt::format("{} is cut over ranks: they need an exchange to make it whole", part.name));
  }
}

void LocalMatrices::run(const at::TensorOptions& options, const MatrixOperation& operation) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    at::Tensor operand = at::empty({parts_[i].shape.numel()}, options);
    operation.read(i, operand);
    operation.write(i, operation.transform(operand.view(parts_[i].shape.global)).view({-1}));
  }
}

}  // namespace pptrain::optim

// Muon (Jordan et al., 2024, kellerjordan.github.io/posts/muon; with weight decay and a scale, Liu et al.,
// arXiv 2502.16982): the momentum of a matrix is made orthogonal before it is applied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"
#include "core/optim/matrix_exchange.h"
#include "core/optim/update.h"

namespace pptrain::optim {

// --- Orthogonalisation of a matrix by GEMMs alone.

// U V^T of x = U S V^T, nearly: five steps of the quintic Newton-Schulz iteration of Jordan et al., Muon
// (2024), on x over its Frobenius norm. Their coefficients (3.4445, -4.7750, 2.0315) leave singular values
// between about 0.7 and 1.2. A zero x stays zero. Type and shape of x: float32 or bfloat16 [rows, cols]; all
// is computed in that type. The bits depend only on x, its shape and type, and the number of threads.
at::Tensor orthogonalise(at::Tensor x);

// Operations of the GEMMs above.
double orthogonalise_flops(int64_t rows, int64_t cols);

// Bytes held at the peak, x and the result included, for `element` bytes an element.
int64_t orthogonalise_bytes(int64_t rows, int64_t cols, int64_t element);

// The update for matrices alone: m += (1 - momentum) (g - m); o = orthogonalised (Nesterov) m; w = (1 - lr
// decay) w - lr 0.2 sqrt(max(rows, cols)) o. The factor gives steps AdamW's usual size (Liu et al., section
// 2.2), so that both take the same learning rate and decay. State file "muon.momentum". Takes muon_momentum
// from `options`. Matrices travel and are made orthogonal with `tensors`: in bfloat16 if layers compute in
// it, else in float32. Without make_exchange this rank must hold all matrices whole.
std::unique_ptr<Update> make_muon(const config::OptimizerSection& options,
                                  const MakeMatrixExchange& make_exchange, const at::TensorOptions& tensors);

// The matrices that it is for: hidden ones, each by itself. Neither embedding nor head, nor a router.
inline bool muon_takes(nn::Role role, size_t dims) {
  return role == nn::Role::matrix && dims == 2;
}

}  // namespace pptrain::optim

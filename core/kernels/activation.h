// What a feed-forward applies to each element between its GEMMs.
#pragma once

namespace pptrain::kernels {

// gelu: x Phi(x) by erf; gelu_tanh: its approximation by tanh (both Hendrycks & Gimpel, arXiv 1606.08415);
// relu_squared: max(x, 0)^2 (So et al., arXiv 2109.08668).
enum class Activation { silu, gelu, gelu_tanh, relu_squared };

}  // namespace pptrain::kernels

// The seam around attention and feed-forward: what a rank does with its tokens before these layers see them,
// and with their results.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace pptrain::nn {

// Tensors are T [rows, hidden]. The base class is the identity: a rank has all rows outside of the region
// too. Under tensor parallelism a rank holds its share of the rows outside, and inside all rows and its share
// of the heads or of the inner width: there entering gathers rows, and leaving sums over ranks and scatters
// rows (sequence parallelism: Korthikanti et al., arXiv 2205.05198).
class Region {
 public:
  virtual ~Region() = default;

  virtual at::Tensor enter(at::Tensor x) const { return x; }
  virtual at::Tensor leave(at::Tensor y) const { return y; }

  // Backward: from the gradient of leave(y) to that of y, and from the gradient of enter(x) to that of x.
  // leave_backward() only reads dy.
  virtual at::Tensor leave_backward(const at::Tensor& dy) const { return dy; }
  virtual at::Tensor enter_backward(at::Tensor dx) const { return dx; }
};

}  // namespace pptrain::nn

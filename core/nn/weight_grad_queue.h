// Defers weight gradients: the split B = I + W of zero-bubble schedules (Qi et al., arXiv 2401.10241).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace pptrain::nn {

class Linear;

// Holds, per pending weight gradient, its two operands and nothing else. One queue serves one microbatch of
// one stage.
class WeightGradQueue {
 public:
  enum class Mode {
    immediate,  // push() computes at once: the operands are hot, and are freed layer by layer
    deferred,   // push() keeps the operands until run()
  };
  explicit WeightGradQueue(Mode mode) : mode_(mode) {}

  // layer.weight gradient += dy^T x. x: T [rows, in]; dy: T [rows, out]. `layer` must outlive the queue.
  void push(Linear& layer, at::Tensor x, at::Tensor dy);

  // Computes what is pending, in push order, freeing each pair of operands when done.
  void run();

  size_t size() const { return pending_.size(); }
  std::vector<at::Tensor> operands() const;  // held, two for each pending weight gradient

 private:
  struct Pending {
    Linear* layer;
    at::Tensor x, dy;
  };
  Mode mode_;
  std::vector<Pending> pending_;
};

}  // namespace pptrain::nn

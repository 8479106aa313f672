// When weight gradients are taken: at once, deferred (the split B = I + W of zero-bubble schedules, Qi et
// al., arXiv 2401.10241), or on a second stream of the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::nn {

// Used by one thread. What a body reads must stay unchanged, and keep its memory, until a join() of its mark.
// The base class serves dry runs, which have only the current stream: a body runs at once.
class SideStream {
 public:
  using Mark = int64_t;  // grows with each run()

  virtual ~SideStream() = default;

  // Runs `body`: what it enqueues comes after all that the current stream holds now, and overlaps with what
  // is enqueued there later. Bodies go one after another.
  virtual Mark run(const std::function<void()>& body) {
    body();
    return 0;
  }

  // Orders the current stream behind the body of this mark, and those before it.
  virtual void join(Mark /*mark*/) {}
};

// On a device with streams. Its stream has the lowest priority: blocks of threads of the current stream, if
// that has a higher one, go first.
std::unique_ptr<SideStream> make_side_stream(c10::Device device);

// --- How layers add to the gradients of weights that only GEMMs write (Weight::grad_by_products): the first
// GEMM since ParameterGroup::start_grad overwrites, so that the gradient need not be filled with zeros.

// weight.grad += dy^T x. Operands as kernels::accumulate_weight_gradient takes them. For a frozen weight
// nothing happens, here and in the two below.
void add_weight_gradient(Weight& weight, const at::Tensor& dy, const at::Tensor& x);

// Rows of an operand of grouped GEMMs, as kernels/expert_kernels.h takes them.
struct GroupedRows {
  at::Tensor x;
  at::Tensor order;  // undefined: x's own
  int64_t each = 1;
  std::optional<at::Tensor> optional_order() const {
    return order.defined() ? std::optional(order) : std::nullopt;
  }
};
// The same for a weight of each expert, stacked along dim 0. ends: int32 [experts].
void add_grouped_weight_gradient(Weight& weight, const GroupedRows& dy, const GroupedRows& x,
                                 const at::Tensor& ends);

// bias.grad += the column sums of dy.
void add_bias_gradient(Weight& bias, const at::Tensor& dy);

// A layer whose weight gradient can be taken later than its input gradient.
class HasWeightGradient {
 public:
  // Adds to the weight's main gradient what follows from the operands that the layer has pushed.
  virtual void backward_weight(std::span<const at::Tensor> operands) = 0;
  // Is a weight of it not frozen?
  virtual bool learns() const { return true; }

 protected:
  ~HasWeightGradient() = default;
};

// Holds, per pending weight gradient, its operands and nothing else. One queue serves one microbatch of one
// stage, or of one of its blocks.
class WeightGradQueue {
 public:
  enum class Mode {
    immediate,  // push() computes at once: the operands are hot, and are freed layer by layer
    deferred,   // push() keeps the operands until run()
    beside,     // push() computes on a side stream, and keeps the operands until join()
  };
  // immediate or deferred.
  explicit WeightGradQueue(Mode mode) : mode_(mode) {}
  // beside. `side` must outlive the queue.
  explicit WeightGradQueue(SideStream& side) : mode_(Mode::beside), side_(&side) {}

  // Calls layer.backward_weight(operands), now or in run(). If the layer does not learn, never calls it and
  // keeps nothing. `layer` must outlive the queue. The caller must not write to an operand any more, except
  // in immediate mode.
  void push(HasWeightGradient& layer, std::vector<at::Tensor> operands);

  // deferred: computes what is pending, in push order, freeing the operands of each when it is done.
  void run();

  // beside: orders the current stream behind what was pushed, and frees the operands. Their memory may then
  // be used again on that stream, and the gradients may be read.
  void join();

  Mode mode() const { return mode_; }
  size_t size() const { return pending_.size(); }
  std::vector<at::Tensor> operands() const;  // of all that is pending

 private:
  Mode mode_;
  SideStream* side_ = nullptr;
  SideStream::Mark mark_ = 0;                                                    // of the last push
  std::vector<std::pair<HasWeightGradient*, std::vector<at::Tensor>>> pending_;  // with its operands
};

}  // namespace pptrain::nn

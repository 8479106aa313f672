// Linear layers with explicit passes, y = x W^T + b: of one rank, and of tensor-parallel ranks that shard the
// weight (Shoeybi et al., arXiv 1909.08053), with the exchange of rows that goes with them (nn::TensorGroup).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/nn/adapter.h"
#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// One output block of a linear layer: its parameter prefix ("layers.3.attn.q") and rows.
struct LinearPart {
  std::string name;
  int64_t out_features = 0;
};

class Linear final : public HasWeightGradient {
 public:
  // The part of a whole weight or bias that this rank holds.
  using Hold = std::function<ParameterSpec(ParameterSpec)>;

  // Declares `<name>.weight` [out, in] (and `<name>.bias` [out]) for each part. This rank holds what `hold`
  // says; the layer computes with these local shapes. The parts' outputs are concatenated. Declares adapters
  // if the group says so, which then belong to every pass. In a group that multiplies in FP8 the forward pass
  // and the input gradient do, and the weight gradient if the group says so (not the adapters); throws
  // UsageError if a local shape is no multiple of 16.
  Linear(ParameterGroup& group, int64_t in_features, const std::vector<LinearPart>& parts, bool bias,
         double init_std, const Hold& hold = std::identity());

  at::Tensor forward(const at::Tensor& x) const;          // T [rows, in] -> T [rows, out]
  void forward(const at::Tensor& x, at::Tensor y) const;  // the same, into y
  at::Tensor backward_input(const at::Tensor& dy) const;  // T [rows, out] -> T [rows, in]
  void backward_input(const at::Tensor& dy, at::Tensor dx) const;
  // Adds the gradients of (x, dy) to the main gradients of weight (and bias). x: T [rows, in]; dy: T [rows,
  // out], contiguous both.
  void backward_weight(const at::Tensor& x, const at::Tensor& dy);
  void backward_weight(std::span<const at::Tensor> operands) override {  // x, dy
    backward_weight(operands[0], operands[1]);
  }
  bool learns() const override;

  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }

 private:
  void multiply_in_fp8(const std::vector<LinearPart>& parts);
  static void multiply(const at::Tensor& x, const Fp8Copy& w, const std::optional<at::Tensor>& bias,
                       at::Tensor& y);

  int64_t in_ = 0, out_ = 0;
  Weight* weight_ = nullptr;
  Weight* bias_ = nullptr;
  std::optional<Adapter> adapter_;
};

// A pass gathers rows; the two layers below save only the rank's own rows. They gather them again when a
// weight gradient needs them, so that a microbatch's saved activations are divided by the number of ranks (as
// in Korthikanti et al., arXiv 2205.05198).

// Sharded by outputs: rows are gathered, and each rank computes its columns of all of them.
class ColumnLinear final : public HasWeightGradient {
 public:
  // Declares the whole `<name>.weight` [out, in] (and biases) of the parts, and holds this rank's rows of
  // each.
  ColumnLinear(ParameterGroup& group, int64_t in_features, const std::vector<LinearPart>& parts, bool bias,
               double init_std, std::shared_ptr<const TensorGroup> tp);
  // From blocks that were declared already, each with its own output tensor.
  ColumnLinear(std::vector<Linear> blocks, std::shared_ptr<const TensorGroup> tp);

  // x: T [share, in], of a list of `rows` rows -> for each block T [rows, its columns].
  std::vector<at::Tensor> forward(const at::Tensor& x, int64_t rows) const;

  // dy: for each block T [rows, its columns] -> T [share, in]. x: as in forward. The weight gradient is taken
  // here or goes to `queue`. If it is taken here, gathering rows overlaps with the input gradient, and
  // sending the input gradient with the weight gradient.
  at::Tensor backward(at::Tensor x, std::vector<at::Tensor> dy, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dy of each block
  bool learns() const override;

 private:
  at::Tensor input_gradient(
      std::span<const at::Tensor> dy) const;  // of this rank's columns: a part of the sum
  void accumulate(const at::Tensor& all, std::span<const at::Tensor> dy);

  std::vector<Linear> blocks_;
  std::shared_ptr<const TensorGroup> tp_;
};

// Sharded by inputs: each rank computes with its columns of the input for all rows; the results are summed
// and their rows scattered. The bias, which all ranks hold, is added to the sum, once.
class RowLinear final : public HasWeightGradient {
 public:
  // Declares the whole `<part.name>.weight` [out, in] (and bias), and holds this rank's columns.
  RowLinear(ParameterGroup& group, int64_t in_features, const LinearPart& part, bool bias, double init_std,
            std::shared_ptr<const TensorGroup> tp);

  at::Tensor forward(const at::Tensor& x) const;  // T [rows, in_features()] -> T [share, out]

  // dy: T [share, out] -> T [rows, in_features()]. x: as in forward. The weight gradient is taken here or
  // goes to `queue`; if it is taken here, x is freed before the result is made. On a side stream it comes
  // after the input gradient, which other ranks wait for.
  at::Tensor backward(at::Tensor x, const at::Tensor& dy, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dy
  bool learns() const override;

  // backward() in two parts, for callers that make x between them. rows: of x. `all` becomes dy of all rows
  // if the second part needs it at once.
  at::Tensor backward_input(const at::Tensor& dy, int64_t rows, const WeightGradQueue& queue,
                            at::Tensor& all) const;
  void backward_weight(at::Tensor x, const at::Tensor& dy, const at::Tensor& all, WeightGradQueue& queue);

  int64_t in_features() const { return linear_->in_features(); }  // this rank's

 private:
  void add_bias(at::Tensor& y) const;
  // all: dy of all rows.
  void accumulate(const at::Tensor& x, const at::Tensor& all, const at::Tensor& dy);

  std::shared_ptr<const TensorGroup> tp_;
  std::optional<Linear> linear_;  // with the bias, for a rank alone
  Weight* bias_ = nullptr;        // otherwise
};

}  // namespace pptrain::nn

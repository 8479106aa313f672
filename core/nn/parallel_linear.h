// Linear layers whose weights tensor-parallel ranks share out (Shoeybi et al., arXiv 1909.08053), with the
// exchange of rows that goes with them (nn::Region). For a rank alone they are Linear.
//
// What is saved of rows that a pass gathered is the rank's share alone: they are gathered again where a
// weight gradient needs them, so that everything a microbatch holds is divided by the number of ranks (as in
// Korthikanti et al., arXiv 2205.05198).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/nn/linear.h"
#include "core/nn/parameter.h"
#include "core/nn/region.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {

// Outputs cut: rows are gathered, and each rank computes its columns of all of them.
class ColumnLinear final : public HasWeightGradient {
 public:
  // Declares the whole `<name>.weight` [out, in] (and biases) of the parts, and holds this rank's rows of
  // each.
  ColumnLinear(ParameterGroup& group, int64_t in_features, std::vector<LinearPart> parts, bool bias,
               double init_std, std::shared_ptr<const Region> region);
  // Of blocks that were declared already, each with an output tensor of its own.
  ColumnLinear(std::vector<Linear> blocks, std::shared_ptr<const Region> region);

  // x: T [share, in], of a list of `rows` rows -> for each block T [rows, its columns].
  std::vector<at::Tensor> forward(const at::Tensor& x, int64_t rows) const;

  // dy: for each block T [rows, its columns] -> T [share, in]. x: as in forward. The weight gradient is taken
  // here or goes to `queue`; where it is taken here, the rows travel while the input gradient is computed,
  // and the input gradient while the weight gradient is.
  at::Tensor backward(at::Tensor x, std::vector<at::Tensor> dy, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dy of each block

 private:
  at::Tensor input_gradient(
      std::span<const at::Tensor> dy) const;  // of this rank's columns: a part of the sum
  void accumulate(const at::Tensor& all, std::span<const at::Tensor> dy);

  std::vector<Linear> blocks_;
  std::shared_ptr<const Region> region_;
};

// Inputs cut: each rank computes with its columns of the input for all rows; the results are summed and their
// rows scattered. The bias, which all ranks hold, is added to the sum, once.
class RowLinear final : public HasWeightGradient {
 public:
  // Declares the whole `<part.name>.weight` [out, in] (and bias), and holds this rank's columns.
  RowLinear(ParameterGroup& group, int64_t in_features, const LinearPart& part, bool bias, double init_std,
            std::shared_ptr<const Region> region);

  at::Tensor forward(const at::Tensor& x) const;  // T [rows, in_features()] -> T [share, out]

  // dy: T [share, out] -> T [rows, in_features()]. x: as in forward. The weight gradient is taken here or
  // goes to `queue`; taken here, x is freed before the result is made. For a side stream it comes behind the
  // input gradient, which others wait for.
  at::Tensor backward(at::Tensor x, const at::Tensor& dy, WeightGradQueue& queue);
  void backward_weight(std::span<const at::Tensor> operands) override;  // x, dy

  // backward() in two parts, for who makes x between them. rows: of x.
  struct InputGradient {
    at::Tensor dx;
    at::Tensor all;  // dy of all rows, where the second part will need it at once
  };
  InputGradient backward_input(const at::Tensor& dy, int64_t rows, const WeightGradQueue& queue) const;
  void backward_weight(at::Tensor x, const at::Tensor& dy, const InputGradient& first,
                       WeightGradQueue& queue);

  int64_t in_features() const { return linear_->in_features(); }  // this rank's

 private:
  void add_bias(at::Tensor& y) const;
  // Gathers dy while the products of what is there already are computed. `all`, where given, receives it.
  at::Tensor input_gradient(const at::Tensor& dy, int64_t rows, at::Tensor* all) const;
  // all: dy of all rows.
  void accumulate(const at::Tensor& x, const at::Tensor& all, const at::Tensor& dy);

  std::shared_ptr<const Region> region_;
  std::optional<Linear> linear_;  // with the bias, for a rank alone
  Weight* bias_ = nullptr;        // otherwise
};

}  // namespace pptrain::nn

// From parts of matrices on any rank to whole ones, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/nn/slice.h"

namespace pptrain::optim {

// What this rank holds of one matrix.
struct MatrixPart {
  std::string name;      // global
  nn::SliceShape shape;  // of two dims
};

// What is done to matrices. Parts are flat, in the order of their slice.
struct MatrixOperation {
  std::function<void(size_t part, at::Tensor& to)> read;           // this rank's part of the operand
  std::function<at::Tensor(at::Tensor matrix)> transform;          // [rows, cols], contiguous, as its result
  std::function<void(size_t part, const at::Tensor& from)> write;  // this rank's part of the result
};

// Each matrix is made whole on one rank, transformed there, and the result's parts go to all ranks that hold
// a part of it. `read` is called at most once for a part (if several ranks hold a part, one of them reads
// it), `transform` once for each matrix that this rank owns, `write` once for each part. Tensors are made
// with `options`: the type that matrices travel and are transformed in, and the device. Collective.
using MatrixExchange =
    std::function<void(const at::TensorOptions& options, const MatrixOperation& operation)>;

// Elements of whole matrices that an exchange handles at a time over all its ranks, if that is more than one
// matrix a rank.
inline constexpr int64_t round_elements = int64_t{1} << 25;

// Makes the exchange of these parts, which it then counts from 0. Collective.
using MakeMatrixExchange = std::function<MatrixExchange(std::vector<MatrixPart> parts)>;

}  // namespace pptrain::optim

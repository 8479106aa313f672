// Kernels of ranks that share out a vocabulary: each holds some rows of the embedding or of the head, and of
// every row of logits the columns that belong to them. Conventions: kernels.h.
#pragma once

#include "core/kernels/kernels.h"

namespace pptrain::kernels {

// The tokens [first, first + n) of a vocabulary of `vocab`, n being the rows (or columns) of the tensor
// beside it.
struct VocabularyPart {
  int64_t first = 0;
  int64_t vocab = 0;
};

// out[i] = weight[tokens[i] - first], or 0 where another rank has that row. tokens: int64 [rows]; weight: T
// [n, dim]; out: T [rows, dim].
inline Kernel<void(const Tensor& tokens, const Tensor& weight, VocabularyPart part, Tensor& out)>
    embedding_part{"embedding_part"};

// weight_grad[tokens[i] - first] += dy[i] for the tokens of the part, in row order. dy: T [rows, dim];
// weight_grad: float32 [n, dim].
inline Kernel<void(const Tensor& tokens, const Tensor& dy, VocabularyPart part, Tensor& weight_grad)>
    embedding_part_backward{"embedding_part_backward"};

// What ranks tell each other of a row of logits, T [rows, n]: its maximum, the sum of exp(x - maximum), and
// the label's logit, 0 where another rank has it. statistics: float32 [rows, 3]; labels: int64 [rows]; a row
// with label -100 has zeros.
inline Kernel<void(const Tensor& logits, const Tensor& labels, VocabularyPart part, Tensor& statistics)>
    softmax_statistics{"softmax_statistics"};

// From the statistics of all ranks, float32 [ranks, rows, 3]: cross entropy as kernels::cross_entropy gives
// it of whole rows of logits, and its gradient in this part of them, in place. loss: float32 [rows].
inline Kernel<void(Tensor& logits, const Tensor& labels, const Tensor& statistics, VocabularyPart part,
                   Tensor& loss, bool want_gradient)>
    cross_entropy_part{"cross_entropy_part"};

}  // namespace pptrain::kernels

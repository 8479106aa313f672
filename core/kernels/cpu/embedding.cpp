#include <spdlog/fmt/fmt.h>

#include <cstring>

#include "core/base/error.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

void check_tokens(const Tensor& tokens, int64_t vocab) {
  const int64_t* token = in<int64_t>(tokens);
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    if (token[row] < 0 || token[row] >= vocab) {
      throw Error(fmt::format(
          "embedding: token {} at row {} is outside the vocabulary of {}; check model.vocab_size against "
          "the data's tokenizer",
          token[row], row, vocab));
    }
  }
}

}  // namespace

void embedding(const Tensor& tokens, const Tensor& weight, Tensor& result) {
  check_tokens(tokens, weight.size(0));
  const int64_t* token = in<int64_t>(tokens);
  const auto row_bytes = static_cast<size_t>(weight.size(1) * weight.element_size());
  const char* from = in<char>(weight);
  char* to = out<char>(result);
  parallel_for(tokens.size(0), row_grain(weight.size(1)), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(to + static_cast<size_t>(row) * row_bytes,
                  from + static_cast<size_t>(token[row]) * row_bytes, row_bytes);
    }
  });
}

// Threads divide the columns, so that rows of one token are added in order.
void embedding_backward(const Tensor& tokens, const Tensor& dy, Tensor& weight_grad) {
  check_tokens(tokens, weight_grad.size(0));
  const int64_t rows = dy.size(0);
  const int64_t dim = dy.size(1);
  by_type(dy, [&]<class T>(T) {
    parallel_for(dim, row_grain(rows), [&](int64_t first, int64_t last) {
      typed<T>(loops()).embedding_backward(in<int64_t>(tokens), in<T>(dy), out<float>(weight_grad), rows, dim,
                                           first, last);
    });
  });
}

void add_embedding_kernels() {
  kernels::embedding.implement(BackEnd::cpu, embedding);
  kernels::embedding_backward.implement(BackEnd::cpu, embedding_backward);
}

}  // namespace pptrain::kernels::cpu

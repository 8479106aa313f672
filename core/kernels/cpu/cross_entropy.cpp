#include <spdlog/fmt/fmt.h>

#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

void check_labels(const Tensor& labels, int64_t vocab) {
  const int64_t* label = in<int64_t>(labels);
  for (int64_t row = 0; row < labels.size(0); ++row) {
    if (label[row] != -100 && (label[row] < 0 || label[row] >= vocab)) {
      throw Error(fmt::format(
          "cross entropy: label {} of row {} is outside the vocabulary of {}; use -100 for rows that do "
          "not count",
          label[row], row, vocab));
    }
  }
}

}  // namespace

void cross_entropy(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient) {
  const int64_t vocab = logits.size(1);
  check_labels(labels, vocab);
  by_type(logits, [&]<class T>(T) {
    const CrossEntropyArgs<T> args{.logits = out<T>(logits),
                                   .labels = in<int64_t>(labels),
                                   .loss = out<float>(loss),
                                   .vocab = vocab,
                                   .want_gradient = want_gradient};
    parallel_for(logits.size(0), row_grain(vocab), [&](int64_t first, int64_t last) {
      std::vector<float> scratch(want_gradient ? static_cast<size_t>(vocab) : 0);
      typed<T>(loops()).cross_entropy(args, scratch.data(), first, last);
    });
  });
}

void add_cross_entropy_kernels() {
  kernels::cross_entropy.implement(BackEnd::cpu, cross_entropy);
}

}  // namespace pptrain::kernels::cpu

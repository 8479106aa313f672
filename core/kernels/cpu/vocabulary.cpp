#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {

namespace {

constexpr int64_t ignored = -100;

// Every rank sees all rows, so that all of them find the same fault.
void check_tokens(const Tensor& tokens, int64_t vocab) {
  const int64_t* token = in<int64_t>(tokens);
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    if (token[row] >= 0 && token[row] < vocab) continue;
    throw Error(
        fmt::format("embedding: token {} of row {} is outside the vocabulary of {}; check model.vocab_size "
                    "against the data's tokenizer",
                    token[row], row, vocab));
  }
}

void check_labels(const Tensor& labels, int64_t vocab) {
  const int64_t* label = in<int64_t>(labels);
  for (int64_t row = 0; row < labels.size(0); ++row) {
    if (label[row] == ignored || (label[row] >= 0 && label[row] < vocab)) continue;
    throw Error(
        fmt::format("cross entropy: label {} of row {} is outside the vocabulary of {}; use {} for rows that "
                    "do not count",
                    label[row], row, vocab, ignored));
  }
}

// The softmax of a row, from what each rank says of its part: statistics + part * stride holds maximum, sum
// and the label's logit.
struct RowSoftmax {
  float maximum = 0;
  double sum = 0;  // of exp(x - maximum)
  double chosen = 0;
};

RowSoftmax combine(const float* statistics, int64_t parts, int64_t stride) {
  RowSoftmax row{.maximum = statistics[0]};
  for (int64_t part = 1; part < parts; ++part) row.maximum = std::max(row.maximum, statistics[part * stride]);
  for (int64_t part = 0; part < parts; ++part) {
    const float* s = statistics + part * stride;
    row.sum +=
        static_cast<double>(s[1]) * std::exp(static_cast<double>(s[0]) - static_cast<double>(row.maximum));
    row.chosen += static_cast<double>(s[2]);
  }
  return row;
}

}  // namespace

void embedding(const Tensor& tokens, const Tensor& weight, VocabularyPart part, Tensor& result) {
  check_tokens(tokens, part.vocab);
  const int64_t* token = in<int64_t>(tokens);
  const int64_t held = weight.size(0);
  const auto row_bytes = static_cast<size_t>(weight.size(1) * weight.element_size());
  const char* from = in<char>(weight);
  char* to = out<char>(result);
  parallel_for(tokens.size(0), row_grain(weight.size(1)), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t here = token[row] - part.first;
      char* target = to + static_cast<size_t>(row) * row_bytes;
      if (here >= 0 && here < held) {
        std::memcpy(target, from + static_cast<size_t>(here) * row_bytes, row_bytes);
      } else {
        std::memset(target, 0, row_bytes);
      }
    }
  });
}

// Threads divide the columns, so that rows of one token are added in order.
void embedding_backward(const Tensor& tokens, const Tensor& dy, VocabularyPart part, Tensor& weight_grad) {
  check_tokens(tokens, part.vocab);
  const int64_t rows = dy.size(0);
  const int64_t dim = dy.size(1);
  by_type(dy, [&]<class T>(T) {
    parallel_for(dim, row_grain(rows), [&](int64_t first, int64_t last) {
      typed<T>(loops()).embedding_backward(in<int64_t>(tokens), part.first, weight_grad.size(0), in<T>(dy),
                                           out<float>(weight_grad), rows, dim, first, last);
    });
  });
}

void softmax_statistics(const Tensor& logits, const Tensor& labels, VocabularyPart part, Tensor& statistics) {
  check_labels(labels, part.vocab);
  by_type(logits, [&]<class T>(T) {
    const SoftmaxArgs<T> args{.logits = const_cast<T*>(in<T>(logits)),
                              .labels = in<int64_t>(labels),
                              .first = part.first,
                              .width = logits.size(1),
                              .statistics = out<float>(statistics)};
    for_rows(typed<T>(loops()).softmax_statistics, args, logits.size(0), args.width);
  });
}

void cross_entropy_part(Tensor& logits, const Tensor& labels, const Tensor& statistics, VocabularyPart part,
                        Tensor& loss, bool want_gradient) {
  const int64_t rows = labels.size(0);
  std::vector<float> maximum(static_cast<size_t>(rows)), scale(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const RowSoftmax softmax = combine(in<float>(statistics) + row * 3, statistics.size(0), rows * 3);
    const bool counts = in<int64_t>(labels)[row] != ignored;
    maximum[static_cast<size_t>(row)] = softmax.maximum;
    scale[static_cast<size_t>(row)] = static_cast<float>(1 / softmax.sum);
    out<float>(loss)[row] = counts
                                ? static_cast<float>(std::log(softmax.sum) +
                                                     (static_cast<double>(softmax.maximum) - softmax.chosen))
                                : 0.0F;
  }
  if (!want_gradient) return;
  by_type(logits, [&]<class T>(T) {
    const SoftmaxArgs<T> args{.logits = out<T>(logits),
                              .labels = in<int64_t>(labels),
                              .first = part.first,
                              .width = logits.size(1),
                              .maximum = maximum.data(),
                              .scale = scale.data()};
    for_rows(typed<T>(loops()).softmax_gradient, args, rows, args.width);
  });
}

void cross_entropy(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient) {
  const int64_t vocab = logits.size(1);
  check_labels(labels, vocab);
  by_type(logits, [&]<class T>(T) {
    const SoftmaxArgs<T> args{.logits = out<T>(logits),
                              .labels = in<int64_t>(labels),
                              .width = vocab,
                              .loss = out<float>(loss),
                              .want_gradient = want_gradient};
    parallel_for(logits.size(0), row_grain(vocab), [&](int64_t first, int64_t last) {
      std::vector<float> scratch(want_gradient ? static_cast<size_t>(vocab) : 0);
      typed<T>(loops()).cross_entropy(args, scratch.data(), first, last);
    });
  });
}

void softcap(Tensor& logits, double scale, double cap) {
  const int64_t width = logits.size(1);
  by_type(logits, [&]<class T>(T) {
    parallel_for(logits.size(0), row_grain(width), [&](int64_t first, int64_t last) {
      typed<T>(loops()).softcap(out<T>(logits), static_cast<float>(scale), static_cast<float>(cap),
                                first * width, last * width);
    });
  });
}

void softcap_backward(const Tensor& capped, double scale, double cap, Tensor& dlogits) {
  const int64_t width = dlogits.size(1);
  by_type(dlogits, [&]<class T>(T) {
    parallel_for(dlogits.size(0), row_grain(width), [&](int64_t first, int64_t last) {
      typed<T>(loops()).softcap_backward(in<T>(capped), out<T>(dlogits), static_cast<float>(scale),
                                         static_cast<float>(cap), first * width, last * width);
    });
  });
}

void add_vocabulary_kernels() {
  kernels::embedding.implement(BackEnd::cpu, embedding);
  kernels::embedding_backward.implement(BackEnd::cpu, embedding_backward);
  kernels::cross_entropy.implement(BackEnd::cpu, cross_entropy);
  kernels::softmax_statistics.implement(BackEnd::cpu, softmax_statistics);
  kernels::cross_entropy_part.implement(BackEnd::cpu, cross_entropy_part);
  kernels::softcap.implement(BackEnd::cpu, softcap);
  kernels::softcap_backward.implement(BackEnd::cpu, softcap_backward);
}

}  // namespace pptrain::kernels::cpu

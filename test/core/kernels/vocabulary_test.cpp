// Kernels on slices of a vocabulary, joined, against the kernels on the whole one.
#include <ATen/Parallel.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// Uneven on purpose; the last slice ends within a vector.
std::vector<std::pair<int64_t, int64_t>> parts_of(int64_t vocab) {
  return {{0, vocab / 2}, {vocab / 2, 1}, {vocab / 2 + 1, vocab - vocab / 2 - 1}};
}

}  // namespace

TEST_CASE("embedding: the parts' sum is the embedding, and their gradients are its rows", "[kernels]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(3));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t vocab = 41, dim = 21, rows = 130;
  const Tensor weight = random({vocab, dim}, type), dy = random({rows, dim}, type);
  const Tensor tokens = at::randint(0, vocab, {rows}, at::kLong);
  Tensor expected = at::empty({rows, dim}, weight.options());
  Tensor expected_grad = at::ones({vocab, dim}, at::kFloat);
  kernels::embedding(tokens, weight, {.first = 0, .vocab = vocab}, expected);
  kernels::embedding_backward(tokens, dy, {.first = 0, .vocab = vocab}, expected_grad);
  Tensor sum = at::zeros_like(expected);
  for (const auto& [first, size] : parts_of(vocab)) {
    Tensor out = at::full({rows, dim}, NAN, weight.options());
    kernels::embedding(tokens, weight.narrow(0, first, size), {.first = first, .vocab = vocab}, out);
    sum.add_(out);
    Tensor grad = at::ones({size, dim}, at::kFloat);
    kernels::embedding_backward(tokens, dy, {.first = first, .vocab = vocab}, grad);
    CHECK(same_bits(grad, expected_grad.narrow(0, first, size)));
  }
  CHECK(same_bits(sum, expected));
}

TEST_CASE("cross_entropy_part: loss and gradient of the whole rows", "[kernels]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(4));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t vocab = 77, rows = 19;
  const Tensor logits = (at::randn({rows, vocab}) * 5).to(type);
  logits[3].fill_(1e4);  // equal and huge
  Tensor labels = at::randint(0, vocab, {rows}, at::kLong);
  labels[5] = -100;
  labels[6] = vocab / 2;
  Tensor whole = logits.clone();
  Tensor expected = at::empty({rows}, at::kFloat);
  kernels::cross_entropy(whole, labels, expected, true);

  std::vector<Tensor> own, statistics;
  for (const auto& [first, size] : parts_of(vocab)) {
    own.push_back(logits.narrow(1, first, size).contiguous());
    statistics.push_back(at::empty({rows, 3}, at::kFloat));
    kernels::softmax_statistics(own.back(), labels, {.first = first, .vocab = vocab}, statistics.back());
  }
  const Tensor all = test::stack(statistics);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto [first, size] = parts_of(vocab)[i];
    const kernels::VocabularyPart part{.first = first, .vocab = vocab};
    Tensor loss = at::empty({rows}, at::kFloat), loss_alone = at::empty({rows}, at::kFloat);
    const Tensor before = own[i].clone();
    kernels::cross_entropy_part(own[i], labels, all, part, loss_alone, false);
    CHECK(same_bits(own[i], before));
    kernels::cross_entropy_part(own[i], labels, all, part, loss, true);
    CHECK(same_bits(loss, loss_alone));
    CHECK(relative_error(loss, expected) < 1e-6);
    CHECK(loss[5].item<float>() == 0);
    CHECK(own[i][5].abs().max().item<float>() == 0);
    CHECK(relative_error(own[i], whole.narrow(1, first, size)) < tolerance(type));
  }
}

TEST_CASE("ids outside of the vocabulary are errors on every rank, and a NaN is one in the loss",
          "[kernels]") {
  at::set_num_threads(1);
  Tensor logits = at::randn({2, 4}), loss = at::empty({2}, at::kFloat);
  Tensor statistics = at::empty({2, 3}, at::kFloat), out = at::empty({2, 4}, at::kFloat);
  const Tensor bad = at::tensor({1, 12}, at::kLong), good = at::tensor({1, 9}, at::kLong);
  const kernels::VocabularyPart part{.first = 4, .vocab = 12};
  CHECK_THROWS_WITH(kernels::softmax_statistics(logits, bad, part, statistics),
                    "cross entropy: label 12 of row 1 is outside the vocabulary of 12; use -100 for "
                    "rows that do not count");
  CHECK_THROWS_WITH(
      kernels::embedding(bad, logits.new_zeros({4, 4}), part, out),
      "embedding: token 12 of row 1 is outside the vocabulary of 12; check model.vocab_size against "
      "the data's tokenizer");
  CHECK_THROWS_AS(kernels::embedding(good, logits.new_zeros({4, 4}), {.first = 9, .vocab = 12}, out), Error);
  logits[0][2] = NAN;
  kernels::softmax_statistics(logits, good, part, statistics);
  kernels::cross_entropy_part(logits, good, statistics.unsqueeze(0), part, loss, true);
  CHECK(std::isnan(loss[0].item<float>()));
  CHECK(std::isfinite(loss[1].item<float>()));
}

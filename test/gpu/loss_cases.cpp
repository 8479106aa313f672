
#include <cmath>
#include <limits>

#include "core/kernels/kernels.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;

TEST_CASE("swiglu and its gradient, in place too", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t dim : {1, 7, 8, 96, 2309, 4096}) {
      CAPTURE(type, dim);
      compare([&](const Backend& b) -> std::vector<Tensor> {
        Tensor gate_up = b.random({3, 2 * dim}, type, 1, 3.0);
        const Tensor dy = b.random({3, dim}, type, 2);
        Tensor y = b.output({3, dim}, type);
        Tensor dgate_up = b.output({3, 2 * dim}, type);
        b(kernels::swiglu, gate_up, y);
        Tensor again = dy.clone();
        b(kernels::swiglu_backward, dy, gate_up, dgate_up, std::nullopt);
        b(kernels::swiglu_backward, again, gate_up, gate_up, again);
        CHECK(same_bits(gate_up, dgate_up));
        CHECK(same_bits(again, y));
        return {y, dgate_up};
      });
    }
  }
}

TEST_CASE("activations and their gradients, in place too", "[gpu]") {
  if (!can_run()) {
    return;
  }
  using enum kernels::Activation;
  for (const auto activation : {silu, gelu, gelu_tanh, relu_squared}) {
    for (const auto type : types) {
      for (const int64_t dim : {7, 96, 2309}) {
        for (const int64_t operands : {1, 2}) {
          CAPTURE(activation, type, dim, operands);
          compare([&](const Backend& b) -> std::vector<Tensor> {
            Tensor x = b.random({3, operands * dim}, type, 1, 3.0);
            const Tensor dy = b.random({3, dim}, type, 2);
            Tensor y = b.output({3, dim}, type);
            Tensor dx = b.output({3, operands * dim}, type);
            b(kernels::activate, x, activation, y);
            Tensor again = dy.clone();
            b(kernels::activate_backward, dy, x, activation, dx, std::nullopt);
            b(kernels::activate_backward, again, x, activation, x, again);
            CHECK(same_bits(x, dx));
            CHECK(same_bits(again, y));
            return {y, dx};
          });
        }
      }
    }
  }
}

TEST_CASE("softcap and its gradient", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t dim : {7, 96, 2309}) {
      for (const double cap : {0.0, 5.0}) {
        CAPTURE(type, dim, cap);
        compare([&](const Backend& b) -> std::vector<Tensor> {
          Tensor x = b.random({3, dim}, type, 1, 3.0);
          Tensor dx = b.random({3, dim}, type, 2);
          b(kernels::softcap, x, 0.5, cap);
          if (cap > 0) b(kernels::softcap_backward, x, 0.5, cap, dx);
          return {x, dx};
        });
      }
    }
  }
}

TEST_CASE("cross_entropy", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t vocab : {1, 5, 65, 256, 4099, 50257, 128256}) {
      CAPTURE(type, vocab);
      compare([&](const Backend& b) -> std::vector<Tensor> {
        const int64_t rows = 4;
        Tensor logits = b.random({rows, vocab}, type, 1, 5.0);
        const Tensor untouched = logits.clone();
        const Tensor labels = b.random_integers(vocab, rows, 2);
        labels[2] = -100;
        Tensor loss = b.output({rows}, at::kFloat);
        Tensor loss_alone = b.output({rows}, at::kFloat);
        b(kernels::cross_entropy, logits, labels, loss_alone, false);
        CHECK(same_bits(logits, untouched));
        b(kernels::cross_entropy, logits, labels, loss, true);
        CHECK(same_bits(loss, loss_alone));
        return {loss, logits};
      });
    }
  }
}

TEST_CASE("cross_entropy with huge, equal and infinite logits", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Tensor logits = at::full({6, 64}, 0.0, at::TensorOptions().dtype(at::kFloat));
  logits[0].fill_(1e30F);                      // all equal: log(64)
  logits[1].slice(0, 0, 32).fill_(-infinity);  // whole packs masked out: log(32)
  logits[2][5] = std::nanf("");
  logits[3].fill_(-infinity);  // no distribution
  logits[4][7] = infinity;
  logits[5][3] = 1000.0F;  // certain: 0
  const Tensor labels = at::full({6}, 40, at::TensorOptions().dtype(at::kLong));
  labels[5] = 3;
  logits = logits.to(b.device);
  Tensor loss = b.output({6}, at::kFloat);
  b(kernels::cross_entropy, logits, labels.to(b.device), loss, true);
  const Tensor result = loss.cpu();
  CHECK(result[0].item<float>() == Approx(std::log(64.0)).epsilon(1e-5));
  CHECK(result[1].item<float>() == Approx(std::log(32.0)).epsilon(1e-5));
  CHECK(std::isnan(result[2].item<float>()));
  CHECK(std::isnan(result[3].item<float>()));
  CHECK(std::isnan(result[4].item<float>()));
  CHECK(result[5].item<float>() == 0.0F);
  const Tensor gradient = logits.cpu();
  CHECK(gradient[1][0].item<float>() == 0.0F);
  CHECK(gradient[1][40].item<float>() == Approx(1.0 / 32 - 1.0));
  CHECK(gradient[5].abs().max().item<float>() == 0.0F);
}

TEST_CASE("labels and tokens outside the vocabulary give NaN, not an access outside the table", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  const Tensor bad = at::full({2}, 8, at::TensorOptions().dtype(at::kLong));
  bad[1] = -1;
  Tensor logits = b.random({2, 8}, at::kFloat, 1);
  Tensor loss = b.random({2}, at::kFloat, 2);
  b(kernels::cross_entropy, logits, bad.to(b.device), loss, true);
  CHECK(loss.isnan().sum().item<int64_t>() == 2);
  CHECK(logits.isnan().sum().item<int64_t>() == 16);
  Tensor out = b.random({2, 4}, at::kFloat, 3);
  b(kernels::embedding, bad.to(b.device), b.random({8, 4}, at::kFloat, 4), {.first = 0, .vocab = 8}, out);
  CHECK(out.isnan().sum().item<int64_t>() == 8);
  Tensor grad = b.random({8, 4}, at::kFloat, 5);
  const Tensor before = grad.clone();
  b(kernels::embedding_backward, bad.to(b.device), b.random({2, 4}, at::kFloat, 6), {.first = 0, .vocab = 8},
    grad);
  CHECK(same_bits(grad, before));
}

TEST_CASE("embedding and its gradient: exactly the CPU's, with many equal tokens", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t dim : {1, 8, 13, 640, 1500}) {
      for (const int64_t rows : {1, 130}) {
        CAPTURE(type, dim, rows);
        const Work work = [&](const Backend& b) -> std::vector<Tensor> {
          const Tensor tokens = b.random_integers(17, rows, 1);
          Tensor out = b.output({rows, dim}, type);
          Tensor weight_grad = b.random({19, dim}, at::kFloat, 4);
          b(kernels::embedding, tokens, b.random({19, dim}, type, 2), {.first = 0, .vocab = 19}, out);
          b(kernels::embedding_backward, tokens, b.random({rows, dim}, type, 3), {.first = 0, .vocab = 19},
            weight_grad);
          return {out, weight_grad};
        };
        compare(work);
        const auto expected = work(reference());
        const auto actual = work(subject());
        CHECK(same_bits(expected[0], actual[0]));
        CHECK(same_bits(expected[1], actual[1]));
      }
    }
  }
}

TEST_CASE("parts of a vocabulary: statistics, loss, gradient and embedding", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t width : {1, 8, 65, 4099}) {
      CAPTURE(type, width);
      const int64_t rows = 5;
      const kernels::VocabularyPart part{.first = 7, .vocab = 7 + width + 20};
      compare([&](const Backend& b) -> std::vector<Tensor> {
        Tensor logits = b.random({rows, width}, type, 1, 5.0);
        const Tensor labels = b.random_integers(part.vocab, rows, 2);
        labels[2] = -100;
        labels[3] = 7;  // here
        Tensor statistics = b.output({2, rows, 3}, at::kFloat);
        Tensor own = statistics[0], other = statistics[1];
        b(kernels::softmax_statistics, b.random({rows, width}, type, 3, 5.0), labels,
          {.first = 0, .vocab = part.vocab}, other);
        b(kernels::softmax_statistics, logits, labels, part, own);
        Tensor loss = b.output({rows}, at::kFloat), loss_alone = b.output({rows}, at::kFloat);
        b(kernels::cross_entropy_part, logits, labels, statistics, part, loss_alone, false);
        b(kernels::cross_entropy_part, logits, labels, statistics, part, loss, true);
        CHECK(same_bits(loss, loss_alone));
        return {statistics, loss, logits};
      });
      compare([&](const Backend& b) -> std::vector<Tensor> {
        const Tensor tokens = b.random_integers(part.vocab, 40, 1);
        Tensor out = b.output({40, 13}, type);
        Tensor weight_grad = b.random({width, 13}, at::kFloat, 4);
        b(kernels::embedding, tokens, b.random({width, 13}, type, 2), part, out);
        b(kernels::embedding_backward, tokens, b.random({40, 13}, type, 3), part, weight_grad);
        return {out, weight_grad};
      });
    }
  }
}


#include <vector>

#include "core/kernels/expert_kernels.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;

namespace {

Tensor int_output(const Backend& b, at::IntArrayRef shape) {
  return at::full(shape, -1, at::TensorOptions().dtype(at::kInt).device(b.device));
}

}  // namespace

TEST_CASE("a router's choice and its gradient", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const int64_t experts : {4, 33, 128}) {
    for (const bool normalise : {false, true}) {
      for (const bool more : {false, true}) {  // a bias, slopes of the probabilities, and filling
        CAPTURE(experts, normalise, more);
        compare([&](const Backend& b) -> std::vector<Tensor> {
          const int64_t tokens = 37, k = 3;
          const Tensor logits = b.random({tokens, experts}, at::kFloat, 1, 3.0);
          const auto extra = [&](uint64_t seed) {
            return more ? std::optional(b.random({experts}, at::kFloat, seed, 0.1)) : std::nullopt;
          };
          Tensor probabilities = b.output({tokens, experts}, at::kFloat),
                 lse = b.output({tokens}, at::kFloat), weights = b.output({tokens, k}, at::kFloat),
                 chosen = int_output(b, {tokens, k}), dlogits = b.output({tokens, experts}, at::kFloat);
          b(kernels::route, logits, extra(2), normalise, probabilities, lse, chosen, weights);
          const auto filling =
              more ? std::optional(b.random_integers(2, tokens, 5).to(at::kBool)) : std::nullopt;
          b(kernels::route_backward, b.random({tokens, k}, at::kFloat, 3), probabilities, lse, chosen,
            extra(4), 0.01, filling, normalise, dlogits);
          return {probabilities, lse, weights, chosen, dlogits};
        });
      }
    }
  }
}

TEST_CASE("equal experts and logits that are not numbers", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const double value : {0.0, static_cast<double>(NAN)}) {
    const Work work = [&](const Backend& b) -> std::vector<Tensor> {
      const Tensor logits = at::full({2, 70}, value, at::TensorOptions().device(b.device));
      Tensor probabilities = b.output({2, 70}, at::kFloat), lse = b.output({2}, at::kFloat),
             weights = b.output({2, 3}, at::kFloat), chosen = int_output(b, {2, 3});
      b(kernels::route, logits, std::nullopt, true, probabilities, lse, chosen, weights);
      return {chosen};
    };
    CHECK(same_bits(work(subject())[0], work(reference())[0]));
  }
}

TEST_CASE("rows in expert order, there and back: exactly the CPU's", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t dim : {1, 8, 13, 640, 1500}) {
      CAPTURE(type, dim);
      const Work work = [&](const Backend& b) -> std::vector<Tensor> {
        const int64_t tokens = 70, k = 4;
        const Tensor chosen = b.random_integers(9, tokens * k, 1).to(at::kInt).view({tokens, k});
        Tensor ends = int_output(b, {11}), order = int_output(b, {tokens * k}),
               place = int_output(b, {tokens, k});
        b(kernels::group_rows, chosen, ends, order, place);
        const Tensor x = b.random({tokens, dim}, type, 2), residual = b.random({tokens, dim}, at::kFloat, 3);
        Tensor rows = b.output({tokens * k, dim}, type), plain = b.output({tokens, dim}, type),
               sum = b.output({tokens, dim}, type);
        b(kernels::gather_rows, x, order, k, rows);
        b(kernels::sum_rows, rows, place, std::nullopt, plain);
        b(kernels::sum_rows, rows, place, residual, sum);
        return {ends, order, place, rows, plain, sum};
      };
      compare(work);
      const auto expected = work(reference()), actual = work(subject());
      for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(expected[i], actual[i]));
    }
  }
}

TEST_CASE("swiglu with a weight for each row, in place too", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t dim : {1, 8, 96, 2309}) {
      CAPTURE(type, dim);
      compare([&](const Backend& b) -> std::vector<Tensor> {
        Tensor gate_up = b.random({3, 2 * dim}, type, 1, 2.0);
        const Tensor dy = b.random({3, dim}, type, 2), weights = b.random({3}, at::kFloat, 3, 0.3);
        Tensor y = b.output({3, dim}, type), dgate_up = b.output({3, 2 * dim}, type),
               dweights = b.output({3}, at::kFloat), again = b.output({3}, at::kFloat);
        b(kernels::weighted_swiglu, gate_up, weights, y);
        b(kernels::weighted_swiglu_backward, dy, gate_up, weights, dgate_up, dweights, std::nullopt);
        Tensor value = dy.clone();
        b(kernels::weighted_swiglu_backward, value, gate_up, weights, gate_up, again, value);
        CHECK(same_bits(value, y));
        return {y, dgate_up, gate_up, dweights * 0.01, again * 0.01};  // sums over a row: larger than 1
      });
    }
  }
}

TEST_CASE("products with a weight for each expert", "[gpu][gemm]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& counts : {std::vector<int>{5, 0, 12, 3}, {0, 0, 20, 0}, {16, 16, 16, 16}}) {
      CAPTURE(type, counts);
      const auto work = [&](const Backend& b) -> std::vector<Tensor> {
        const int64_t in = 48, out = 40;
        const Tensor ends =
            at::cumsum(at::tensor(counts, at::TensorOptions().dtype(at::kInt)), 0, at::kInt).to(b.device);
        const int64_t rows = ends[3].item<int>();
        const Tensor x = b.random({rows, in}, type, 1), dy = b.random({rows, out}, type, 2),
                     weight = b.random({4, out, in}, type, 3, 0.1);
        Tensor y = b.output({rows, out}, type), dx = b.output({rows, in}, type),
               grad = at::zeros({4, out, in}, at::TensorOptions().device(b.device));
        b(kernels::grouped_linear, x, std::nullopt, 1, ends, weight, y);
        b(kernels::grouped_matmul, dy, std::nullopt, 1, ends, weight, dx);
        b(kernels::accumulate_grouped_weight_gradient, dy, std::nullopt, x, std::nullopt, 1, ends, grad);
        const Tensor order = b.random_integers(2 * rows, rows, 4).to(at::kInt);
        Tensor y2 = b.output({rows, out}, type), grad2 = at::zeros_like(grad);
        b(kernels::grouped_linear, x, order, 2, ends, weight, y2);
        b(kernels::accumulate_grouped_weight_gradient, dy, std::nullopt, x, order, 2, ends, grad2);
        Tensor first = b.output({4, out, in}, at::kFloat);  // NaN: overwritten whole, zeros without rows
        b(kernels::grouped_weight_gradient, dy, std::nullopt, x, order, 2, ends, first);
        return {y, dx, grad, y2, grad2, first};
      };
      compare(work);
    }
  }
}

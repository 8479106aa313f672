// Kernels of experts against LibTorch's autograd in float64, and against plain loops.
#include "core/kernels/expert_kernels.h"

#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using kernels::DryRun;

namespace {

const auto types = {at::kFloat, at::kBFloat16};

struct Routed {
  Tensor probabilities, logsumexp, chosen, weights;
};

Routed route(const Tensor& logits, const std::optional<Tensor>& bias, int64_t k, bool normalise) {
  const int64_t tokens = logits.size(0);
  Routed r{.probabilities = at::empty_like(logits),
           .logsumexp = at::empty({tokens}),
           .chosen = at::empty({tokens, k}, at::kInt),
           .weights = at::empty({tokens, k})};
  kernels::route(logits, bias, normalise, r.probabilities, r.logsumexp, r.chosen, r.weights);
  return r;
}

Tensor ints(std::vector<int32_t> values) {
  return at::tensor(values, at::kInt);
}

// The ends of groups of `counts` rows.
Tensor ends_of(std::vector<int32_t> counts) {
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  return ints(counts);
}

}  // namespace

TEST_CASE("a router's choice, and the gradient of its weights and losses", "[kernels][experts]") {
  at::manual_seed(test::seed(1));
  for (const int64_t experts : {5, 64, 130}) {
    for (const int64_t k : {1, 3, 5}) {
      for (const bool normalise : {false, true}) {
        CAPTURE(experts, k, normalise);
        const Tensor logits = at::randn({40, experts}) * 2;
        const Routed r = route(logits, std::nullopt, k, normalise);

        const Tensor x = leaf(logits);
        const Tensor p = at::softmax(x, -1);
        auto [weights, chosen] = at::topk(p, k);
        if (normalise) weights = weights / weights.sum(-1, true);
        const Tensor logsumexp = at::logsumexp(x, {-1});
        CHECK(at::equal(r.chosen, chosen.to(at::kInt)));
        CHECK(relative_error(r.probabilities, p) < 2e-6);
        CHECK(relative_error(r.weights, weights) < 2e-6);
        CHECK(relative_error(r.logsumexp, logsumexp) < 2e-6);

        const Tensor dweights = at::randn({40, k});
        const Tensor slopes = at::randn({experts});
        const auto check = [&](const std::optional<Tensor>& filling) {
          const Tensor counted = filling ? filling->logical_not() : at::ones({40}, at::kBool);
          const Tensor losses = (p * slopes).sum(-1) + 0.03 * logsumexp.square();
          x.mutable_grad() = Tensor();
          ((weights * dweights).sum() + (losses * counted).sum()).backward({}, /*retain_graph=*/true);
          Tensor dlogits = at::empty_like(logits);
          kernels::route_backward(dweights, r.probabilities, r.logsumexp, r.chosen, slopes, 0.03, filling,
                                  normalise, dlogits);
          CHECK(relative_error(dlogits, x.grad()) < 5e-6);
        };
        check(std::nullopt);
        check(at::rand({40}) < 0.3);
      }
    }
  }
}

TEST_CASE("of equal experts the lower index is chosen, and a bias counts for the choice alone",
          "[kernels][experts]") {
  const Tensor equal = at::zeros({2, 20});
  equal[1][7] = 1;
  CHECK(at::equal(route(equal, std::nullopt, 3, true).chosen.view({-1}), ints({0, 1, 2, 7, 0, 1})));

  at::manual_seed(test::seed(2));
  const Tensor logits = at::randn({30, 20});
  Tensor bias = at::zeros({20});
  bias[4] = 2;
  bias[11] = 1;
  const Routed plain = route(logits, std::nullopt, 2, false);
  const Routed biased = route(logits, bias, 2, false);
  CHECK((biased.chosen == ints({4, 11})).all().item<bool>());
  CHECK(same_bits(plain.probabilities, biased.probabilities));
  CHECK(same_bits(biased.weights, plain.probabilities.index_select(1, at::tensor({4, 11}))));
}

TEST_CASE("values that are not numbers still choose different experts", "[kernels][experts]") {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    const Tensor chosen = route(at::full({1, 6}, value), std::nullopt, 4, true).chosen;
    const auto [sorted, index] = chosen.sort(-1);
    CHECK(at::equal(sorted.view({-1}), ints({0, 1, 2, 3})));
  }
}

TEST_CASE("rows in expert order, there and back", "[kernels][experts]") {
  at::manual_seed(test::seed(3));
  const int64_t tokens = 50, k = 3, experts = 11, dim = 21;
  Tensor chosen = at::randint(experts - 2, {tokens, k}, at::kInt);
  chosen = at::where(chosen >= 4, chosen + 1, chosen);  // experts 4 and 10 get nothing
  Tensor ends = at::empty({experts}, at::kInt), order = at::empty({tokens * k}, at::kInt),
         place = at::empty({tokens, k}, at::kInt);
  kernels::group_rows(chosen, ends, order, place);
  std::vector<int32_t> expected_order, expected_ends;
  for (int e = 0; e < experts; ++e) {
    for (int i = 0; i < tokens * k; ++i) {
      if (chosen.view({-1})[i].item<int>() == e) expected_order.push_back(i);
    }
    expected_ends.push_back(static_cast<int32_t>(expected_order.size()));
  }
  CHECK(at::equal(order, ints(expected_order)));
  CHECK(at::equal(ends, ints(expected_ends)));
  CHECK(at::equal(place.view({-1}).index_select(0, order), at::arange(tokens * k, at::kInt)));

  for (const auto type : types) {
    CAPTURE(type);
    const Tensor x = random({tokens, dim}, type);
    Tensor rows = at::empty({tokens * k, dim}, x.options());
    kernels::gather_rows(x, order, k, rows);
    CHECK(same_bits(rows, x.index_select(0, at::floor_divide(order, k))));

    rows = random({tokens * k, dim}, type);
    const Tensor residual = at::randn({tokens, dim});
    Tensor sum = at::empty_like(x);
    const Tensor picked = rows.index_select(0, place.view({-1})).view({tokens, k, dim}).to(at::kFloat);
    const Tensor plain = (picked.select(1, 0) + picked.select(1, 1)) + picked.select(1, 2);
    kernels::sum_rows(rows, place, std::nullopt, sum);
    CHECK(same_bits(sum, plain.to(type)));
    kernels::sum_rows(rows, place, residual, sum);
    CHECK(same_bits(sum, (plain + residual).to(type)));
  }
}

TEST_CASE("swiglu with a weight for each row", "[kernels][experts]") {
  at::manual_seed(test::seed(4));
  for (const auto type : types) {
    for (const int64_t dim : {1, 21, 96}) {
      CAPTURE(type, dim);
      Tensor gate_up = random({9, 2 * dim}, type);
      const Tensor weights = at::rand({9}), dy = random({9, dim}, type);
      Tensor y = at::empty({9, dim}, dy.options()), dgate_up = at::empty_like(gate_up),
             dweights = at::empty({9});
      kernels::weighted_swiglu(gate_up, weights, y);
      kernels::weighted_swiglu_backward(dy, gate_up, weights, dgate_up, dweights, std::nullopt);

      const Tensor x = leaf(gate_up), w = leaf(weights);
      const auto halves = x.chunk(2, -1);
      const Tensor expected = at::silu(halves[0]) * halves[1] * w.unsqueeze(1);
      expected.backward(dy.to(at::kDouble));
      CHECK(relative_error(y, expected) < tolerance(type));
      CHECK(relative_error(dgate_up, x.grad()) < tolerance(type));
      CHECK(relative_error(dweights, w.grad()) < 2e-6);
      Tensor again = dy.clone();
      kernels::weighted_swiglu_backward(again, gate_up, weights, gate_up, dweights, again);
      CHECK(same_bits(gate_up, dgate_up));
      CHECK(same_bits(again, y));
    }
  }
}

TEST_CASE("products with a weight for each expert", "[kernels][experts]") {
  at::manual_seed(test::seed(5));
  const std::vector<std::vector<int32_t>> divisions = {
      {3, 0, 40, 1, 0}, {0, 0, 0, 0, 44}, {44, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {128, 64, 32, 300, 16}};
  for (const auto type : types) {
    for (const auto& counts : divisions) {
      for (const auto& [in, out] : {std::pair<int64_t, int64_t>{24, 40}, {13, 7}, {160, 96}}) {
        CAPTURE(type, counts, in, out);
        const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
        const Tensor ends = ends_of(counts);
        const Tensor x = random({rows, in}, type), dy = random({rows, out}, type),
                     weight = random({5, out, in}, type);
        Tensor y = at::empty_like(dy), dx = at::empty_like(x);
        const Tensor before = at::randn({5, out, in});
        Tensor grad = before.clone();
        kernels::grouped_linear(x, std::nullopt, 1, ends, weight, y);
        kernels::grouped_matmul(dy, std::nullopt, 1, ends, weight, dx);
        kernels::accumulate_grouped_weight_gradient(dy, std::nullopt, x, std::nullopt, 1, ends, grad);
        Tensor set = at::full_like(before, std::nan("")), sums = at::zeros_like(before);
        kernels::grouped_weight_gradient(dy, std::nullopt, x, std::nullopt, 1, ends, set);
        kernels::accumulate_grouped_weight_gradient(dy, std::nullopt, x, std::nullopt, 1, ends, sums);
        CHECK(set.eq(sums).all().item<bool>());  // zeros for an expert without rows
        int64_t first = 0;
        for (int64_t e = 0; e < 5; ++e) {
          const int64_t n = counts[static_cast<size_t>(e)];
          const Tensor xe = x.narrow(0, first, n).to(at::kDouble),
                       de = dy.narrow(0, first, n).to(at::kDouble), we = weight[e].to(at::kDouble);
          CHECK(relative_error(y.narrow(0, first, n), xe.mm(we.t())) < tolerance(type));
          CHECK(relative_error(dx.narrow(0, first, n), de.mm(we)) < tolerance(type));
          CHECK(relative_error(grad[e], before[e].to(at::kDouble) + de.t().mm(xe)) < 2e-6);
          if (n == 0) CHECK(same_bits(grad[e], before[e]));
          first += n;
        }
      }
    }
  }
}

TEST_CASE("a product's rows may be named by an order: the same bits as gathered before",
          "[kernels][experts]") {
  at::manual_seed(test::seed(6));
  const Tensor ends = ends_of({30, 0, 50, 4}), order = at::randperm(84, at::kInt);
  for (const auto type : types) {
    CAPTURE(type);
    const Tensor x = random({28, 72}, type), dy = random({28, 56}, type), weight = random({4, 56, 72}, type);
    Tensor xs = at::empty({84, 72}, x.options()), dys = at::empty({84, 56}, x.options());
    kernels::gather_rows(x, order, 3, xs);
    kernels::gather_rows(dy, order, 3, dys);
    Tensor y = at::empty_like(dys), y2 = at::empty_like(dys), dx = at::empty_like(xs),
           dx2 = at::empty_like(xs);
    kernels::grouped_linear(x, order, 3, ends, weight, y);
    kernels::grouped_linear(xs, std::nullopt, 1, ends, weight, y2);
    CHECK(same_bits(y, y2));
    kernels::grouped_matmul(dy, order, 3, ends, weight, dx);
    kernels::grouped_matmul(dys, std::nullopt, 1, ends, weight, dx2);
    CHECK(same_bits(dx, dx2));
    Tensor plain = at::zeros({4, 56, 72}), left = plain.clone(), right = plain.clone();
    kernels::accumulate_grouped_weight_gradient(dys, std::nullopt, xs, std::nullopt, 1, ends, plain);
    kernels::accumulate_grouped_weight_gradient(dy, order, xs, std::nullopt, 3, ends, left);
    kernels::accumulate_grouped_weight_gradient(dys, std::nullopt, x, order, 3, ends, right);
    CHECK(same_bits(left, plain));
    CHECK(same_bits(right, plain));
  }
}

TEST_CASE("ends that do not divide the rows are refused", "[kernels][experts]") {
  const Tensor x = at::zeros({4, 8}), weight = at::zeros({2, 8, 8});
  Tensor y = at::zeros({4, 8});
  CHECK_THROWS_WITH(kernels::grouped_linear(x, std::nullopt, 1, ints({2, 3}), weight, y),
                    contains_text("belong to no expert"));
  CHECK_THROWS_WITH(kernels::grouped_linear(x, std::nullopt, 1, ints({3, 5}), weight, y),
                    contains_text("expert 1 has the rows"));
  CHECK_THROWS_AS(kernels::grouped_linear(x, std::nullopt, 1, ints({4}), weight, y), Error);
}

TEST_CASE("a dry run counts grouped products as dense ones of the same rows", "[kernels][experts]") {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Tensor x = at::empty({48, 8}, meta), ends = at::empty({4}, meta.dtype(at::kInt)),
               weight = at::empty({4, 6, 8}, meta);
  Tensor y = at::empty({48, 6}, meta);
  DryRun run;
  kernels::grouped_linear(x, std::nullopt, 1, ends, weight, y);
  CHECK(run.cost().product_flops == 2.0 * 48 * 6 * 8);
  CHECK(run.cost().weight_bytes == 4.0 * 6 * 8 * 4);
}

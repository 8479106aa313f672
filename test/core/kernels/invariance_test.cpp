// The fused kernels give the same bits for any number of threads, instruction set, and place in a buffer.
#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/kernels.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
namespace cpu = pptrain::kernels::cpu;

namespace {

const auto single = at::TensorOptions().dtype(at::kFloat);

// Large enough that every kernel divides its work.
std::vector<Tensor> run_all(at::ScalarType type) {
  at::manual_seed(test::seed(5));
  const int64_t rows = 400, dim = 520, heads = 8, head_dim = 64, vocab = 3001;
  std::vector<Tensor> results;
  const Tensor x = random({rows, dim}, type), dy = random({rows, dim}, type);
  const Tensor weight = at::rand({dim}, single);
  Tensor y = at::empty_like(x), rstd = at::empty({rows}, single), dx = at::empty_like(x),
         grad = at::zeros({dim}, single);
  kernels::rms_norm(x, weight, 1e-6, y, rstd);
  kernels::rms_norm_backward(dy, x, weight, rstd, y, dx, grad);
  results.insert(results.end(), {y, rstd, dx, grad});

  const Tensor q = random({rows, heads, head_dim}, type), dq = random({rows, heads, head_dim}, type);
  const kernels::RopeTable table{.cos = at::randn({rows, head_dim / 2}, single),
                                 .sin = at::randn({rows, head_dim / 2}, single)};
  const Tensor positions = at::arange(rows, at::kInt), norm = at::rand({head_dim}, single);
  Tensor rotated = at::empty_like(q), head_rstd = at::empty({rows, heads}, single), out = at::empty_like(q);
  Tensor norm_grad = at::zeros({head_dim}, single);
  kernels::norm_rope({{.x = q, .y = rotated, .weight = norm, .rstd = head_rstd}}, 1e-6, table, positions);
  kernels::norm_rope_backward(
      {{.dy = dq, .dx = out, .x = q, .weight = norm, .rstd = head_rstd, .weight_grad = norm_grad}}, table,
      positions);
  results.insert(results.end(), {rotated, head_rstd, out, norm_grad});

  const Tensor gate_up = random({rows, 2 * dim}, type);
  Tensor act = at::empty({rows, dim}, x.options()), dgate_up = at::empty_like(gate_up),
         bias = at::zeros({2 * dim}, single);
  kernels::swiglu(gate_up, act);
  Tensor again = at::empty_like(act);
  kernels::swiglu_backward(dy, gate_up, dgate_up, again);
  kernels::accumulate_bias_gradient(gate_up, bias);
  results.insert(results.end(), {act, dgate_up, again, bias});
  using enum kernels::Activation;
  for (const auto activation : {silu, gelu, gelu_tanh, relu_squared}) {
    Tensor value = at::empty_like(act), slope = at::empty_like(gate_up);
    kernels::activate(gate_up, activation, value);
    kernels::activate_backward(dy, gate_up, activation, slope, std::nullopt);
    results.insert(results.end(), {value, slope});
  }

  Tensor logits = random({rows, vocab}, type), loss = at::empty({rows}, single),
         table_grad = at::zeros({vocab, dim}, single);
  const Tensor tokens = at::randint(0, vocab, {rows}, at::kLong);
  kernels::cross_entropy(logits, tokens, loss, true);
  kernels::embedding_backward(tokens.remainder(50), dy, {.first = 0, .vocab = vocab}, table_grad);
  results.insert(results.end(), {logits, loss, table_grad});

  const int64_t size = 300000;
  Tensor w = at::randn({size}, single), m = at::randn({size}, single), v = at::rand({size}, single);
  Tensor compute = at::empty({size}, at::kBFloat16), squares = at::zeros({20}, at::kLong);
  const Tensor g = at::randn({size}, single);
  const kernels::StepPrevious kept{at::empty_like(w), at::empty_like(w), at::empty_like(w)};
  kernels::adamw({{w, g, m, v, compute, {.lr = 1e-2, .weight_decay = 0.1, .step = 3}, kept}});
  kernels::add_squares({{g, 0}}, squares);
  results.insert(results.end(), {w, m, v, compute, squares, kept.weight, kept.exp_avg, kept.exp_avg_sq});
  return results;
}

}  // namespace

TEST_CASE("one thread and several give the same bits", "[kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  at::set_num_threads(1);
  const std::vector<Tensor> one = run_all(type);
  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    const std::vector<Tensor> several = run_all(type);
    at::set_num_threads(1);
    REQUIRE(several.size() == one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      INFO("result " << i << ", " << threads << " threads");
      CHECK(same_bits(one[i], several[i]));
    }
  }
}

TEST_CASE("adamw and sums do not depend on where in a buffer an element lies", "[kernels]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(3));
  const int64_t size = 203;
  const Tensor g = at::randn({size}, single), w0 = at::randn({size}, single), m0 = at::randn({size}, single),
               v0 = at::rand({size}, single);
  const kernels::StepArgs args{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.3, .step = 2};
  Tensor w = w0.clone(), m = m0.clone(), v = v0.clone(), compute = at::empty({size}, at::kBFloat16);
  kernels::adamw({{w, g, m, v, compute, args, std::nullopt}});
  for (int64_t i = 0; i < size; ++i) {
    Tensor w1 = w0.narrow(0, i, 1).clone(), m1 = m0.narrow(0, i, 1).clone(), v1 = v0.narrow(0, i, 1).clone();
    Tensor c1 = at::empty({1}, at::kBFloat16);
    kernels::adamw({{w1, g.narrow(0, i, 1), m1, v1, c1, args, std::nullopt}});
    REQUIRE(same_bits(w1, w.narrow(0, i, 1)));
    REQUIRE(same_bits(m1, m.narrow(0, i, 1)));
    REQUIRE(same_bits(v1, v.narrow(0, i, 1)));
    REQUIRE(same_bits(c1, compute.narrow(0, i, 1)));
  }
}

TEST_CASE("adamw keeps what it overwrites, wherever it lies", "[kernels]") {
  const int64_t threads = GENERATE(1, 2), offset = GENERATE(0, 3), size = GENERATE(7, 203, 70001);
  CAPTURE(threads, offset, size);
  at::set_num_threads(static_cast<int>(threads));
  at::manual_seed(test::seed(7));
  const Tensor g = at::randn({size}, single), w0 = at::randn({size}, single), m0 = at::randn({size}, single),
               v0 = at::rand({size}, single);
  Tensor w = w0.clone(), m = m0.clone(), v = v0.clone(), w1 = w0.clone(), m1 = m0.clone(), v1 = v0.clone();
  const Tensor kept = at::full({3, size + offset + 1}, -7, single);
  const auto row = [&](int64_t i) { return kept[i].narrow(0, offset, size); };
  const kernels::StepArgs args{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.3, .step = 2};
  kernels::adamw({{w, g, m, v, std::nullopt, args, kernels::StepPrevious{row(0), row(1), row(2)}}});
  kernels::adamw({{w1, g, m1, v1, std::nullopt, args, std::nullopt}});
  at::set_num_threads(1);
  CHECK(same_bits(row(0), w0));
  CHECK(same_bits(row(1), m0));
  CHECK(same_bits(row(2), v0));
  CHECK(same_bits(w, w1));
  CHECK(same_bits(m, m1));
  CHECK(same_bits(v, v1));
  for (int64_t i = 0; i < 3; ++i) CHECK(kept[i][offset + size].item<float>() == -7);  // nothing beyond
}

TEST_CASE("zero gaps stay zero under adamw", "[kernels]") {
  Tensor w = at::zeros({64}, single), m = at::zeros({64}, single), v = at::zeros({64}, single);
  kernels::adamw(
      {{w, at::zeros({64}, single), m, v, std::nullopt, {.lr = 1, .weight_decay = 0.1}, std::nullopt}});
  CHECK(w.abs().sum().item<float>() == 0);
}

TEST_CASE("all instruction sets agree", "[kernels]") {
  const int64_t vocab = 1003;
  at::manual_seed(test::seed(11));
  const Tensor logits = random({4, vocab}, at::kBFloat16) * 6;
  const Tensor labels = at::tensor({0, 1002, 17, -100}, at::kLong);
  const auto run = [&](const cpu::Loops& loops) {
    Tensor x = logits.clone(), loss = at::empty({4}, single), scratch = at::empty({vocab}, single);
    const cpu::SoftmaxArgs<uint16_t> args{.logits = static_cast<uint16_t*>(x.data_ptr()),
                                          .labels = labels.const_data_ptr<int64_t>(),
                                          .width = vocab,
                                          .loss = loss.mutable_data_ptr<float>(),
                                          .want_gradient = true};
    loops.bf16.cross_entropy(args, scratch.mutable_data_ptr<float>(), 0, 4);
    return std::pair{x, loss};
  };
  const auto [x, loss] = run(cpu::baseline_table);
  std::vector<std::pair<Tensor, Tensor>> fused;  // those with FMA: the same bits
  for (const cpu::Loops* loops : cpu::available_loops()) {
    if (loops == &cpu::baseline_table) continue;
    fused.push_back(run(*loops));
    CHECK(relative_error(fused.back().first, x) < 1e-3);
    CHECK(relative_error(fused.back().second, loss) < 1e-6);
    CHECK(same_bits(fused.back().first, fused.front().first));
    CHECK(same_bits(fused.back().second, fused.front().second));
  }
}

TEST_CASE("rounding to bfloat16 is ATen's", "[kernels]") {
  at::manual_seed(test::seed(2));
  Tensor values = at::randn({4096}, single) * at::pow(10.0, at::randn({4096}, single) * 10);
  values.masked_fill_(values.abs() < 1.2e-38, 0);  // AVX512-BF16 flushes denormal numbers
  values[0] = std::numeric_limits<float>::infinity();
  values[1] = -std::numeric_limits<float>::infinity();
  values[2] = std::numeric_limits<float>::max();
  values[3] = 1.00390625F;  // halfway between two bfloat16 values
  Tensor m = at::zeros_like(values), v = at::ones_like(values), compute = at::empty({4096}, at::kBFloat16);
  kernels::adamw({{values, at::zeros_like(values), m, v, compute, {.lr = 0}, std::nullopt}});
  CHECK(same_bits(compute, values.to(at::kBFloat16)));
  values[7] = std::nan("");
  kernels::adamw({{values, at::zeros_like(values), m, v, compute, {.lr = 0}, std::nullopt}});
  CHECK(std::isnan(compute[7].item<float>()));
}

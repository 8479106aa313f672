
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"
#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;
using kernels::StepArgs;

TEST_CASE("weight and bias gradients accumulate", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, out, in] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 3, 7}, {64, 16, 48}, {40, 129, 8}}) {
      CAPTURE(type, rows, out, in);
      compare(
          [&, rows = rows, out = out, in = in](const Backend& b) -> std::vector<Tensor> {
            const Tensor dy = b.random({rows, out}, type, 1);
            Tensor weight_grad = b.random({out, in}, at::kFloat, 3);
            Tensor bias_grad = b.random({out}, at::kFloat, 4);
            b(kernels::accumulate_weight_gradient, dy, b.random({rows, in}, type, 2), weight_grad);
            b(kernels::accumulate_bias_gradient, dy, bias_grad);
            return {weight_grad, bias_grad};
          },
          1e-4);
    }
  }
}

TEST_CASE("a first weight gradient overwrites, whatever was there", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, out, in] :
         std::vector<std::array<int64_t, 3>>{{0, 3, 7}, {1, 1, 1}, {5, 3, 7}, {64, 16, 48}, {40, 129, 8}}) {
      CAPTURE(type, rows, out, in);
      compare(
          [&, rows = rows, out = out, in = in](const Backend& b) -> std::vector<Tensor> {
            Tensor weight_grad = b.output({out, in}, at::kFloat);  // NaN
            b(kernels::weight_gradient, b.random({rows, out}, type, 1), b.random({rows, in}, type, 2),
              weight_grad);
            return {weight_grad};
          },
          1e-4);
    }
  }
}

TEST_CASE("matrix products of odd sizes and unaligned operands, with and without bias", "[gpu][gemm]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, out, in] : std::vector<std::array<int64_t, 3>>{
             {0, 8, 8}, {1, 1, 1}, {1, 24, 16}, {7, 13, 11}, {33, 64, 129}, {130, 40, 64}}) {
      for (const bool aligned : {true, false}) {
        CAPTURE(type, rows, out, in, aligned);
        compare(
            [&, rows = rows, out = out, in = in](const Backend& b) -> std::vector<Tensor> {
              const auto placed = [&](Tensor t) { return aligned ? t : misaligned(t); };
              // Every other row of a larger tensor.
              const Tensor wide = placed(b.random({rows, 2 * in}, type, 1));
              const Tensor x = wide.narrow(1, 0, in), weight = placed(b.random({out, in}, type, 2));
              const Tensor bias = placed(b.random({out}, type, 3)),
                           dy = placed(b.random({rows, out}, type, 4));
              Tensor y = b.output({rows, out}, type), plain = b.output({rows, out}, type),
                     dx = b.output({rows, in}, type);
              b(kernels::linear, x, weight, bias, y);
              b(kernels::linear, x, weight, std::nullopt, plain);
              b(kernels::matmul, dy, weight, dx);
              return {y, plain, dx};
            },
            1e-4);
      }
    }
  }
}

TEST_CASE("matrix products", "[gpu][gemm]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    CAPTURE(type);
    compare(
        [&](const Backend& b) -> std::vector<Tensor> {
          const Tensor x = b.random({5, 24}, type, 1);
          const Tensor weight = b.random({40, 24}, type, 2);
          Tensor y = b.output({5, 40}, type);
          Tensor without_bias = b.output({5, 40}, type);
          Tensor dx = b.output({5, 24}, type);
          b(kernels::linear, x, weight, b.random({40}, type, 3), y);
          b(kernels::linear, x, weight, std::nullopt, without_bias);
          b(kernels::matmul, b.random({5, 40}, type, 4), weight, dx);
          return {y, without_bias, dx};
        },
        1e-4);
  }
}

TEST_CASE("bias gradient over many rows and columns", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, out] : std::vector<std::array<int64_t, 2>>{{9001, 6}, {33, 2500}, {17, 1024}}) {
      CAPTURE(type, rows, out);
      compare(
          [&, rows = rows, out = out](const Backend& b) -> std::vector<Tensor> {
            Tensor bias_grad = b.random({out}, at::kFloat, 4);
            b(kernels::accumulate_bias_gradient, b.random({rows, out}, type, 1), bias_grad);
            return {bias_grad};
          },
          1e-3);
    }
  }
}

TEST_CASE("adamw over several steps, with and without the compute copy", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const int64_t size : {1, 3, 4, 1000, 4099}) {
    for (const bool copy : {false, true}) {
      CAPTURE(size, copy);
      compare([&](const Backend& b) -> std::vector<Tensor> {
        Tensor weight = b.random({size}, at::kFloat, 1);
        Tensor exp_avg = b.random({size}, at::kFloat, 2, 0.0);
        Tensor exp_avg_sq = b.random({size}, at::kFloat, 2, 0.0);
        Tensor compute = b.output({size}, at::kBFloat16);
        for (int64_t step = 1; step <= 3; ++step) {
          b(kernels::adamw,
            {{weight, b.random({size}, at::kFloat, 10 + static_cast<uint64_t>(step)), exp_avg, exp_avg_sq,
              copy ? std::optional(compute) : std::nullopt,
              StepArgs{.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.3, .step = step}, std::nullopt}});
        }
        if (copy) {
          CHECK(same_bits(compute, weight.to(at::kBFloat16)));
          return {weight, exp_avg, exp_avg_sq, compute};
        }
        return {weight, exp_avg, exp_avg_sq};
      });
    }
  }
}

TEST_CASE("adamw keeps what it overwrites", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  for (const int64_t size : {1, 4, 1003}) {
    for (const bool odd : {false, true}) {
      CAPTURE(size, odd);
      const auto place = [&](const Tensor& x) { return odd ? misaligned(x) : x; };
      Tensor weight = b.random({size}, at::kFloat, 1);
      Tensor exp_avg = b.random({size}, at::kFloat, 2);
      Tensor exp_avg_sq = b.random({size}, at::kFloat, 3).abs();
      const std::array<Tensor, 3> before{weight.clone(), exp_avg.clone(), exp_avg_sq.clone()};
      const kernels::StepPrevious previous{.weight = place(b.output({size}, at::kFloat)),
                                           .exp_avg = place(b.output({size}, at::kFloat)),
                                           .exp_avg_sq = place(b.output({size}, at::kFloat))};
      b(kernels::adamw, {{weight, b.random({size}, at::kFloat, 4), exp_avg, exp_avg_sq, std::nullopt,
                          StepArgs{.lr = 0.01}, previous}});
      CHECK(same_bits(previous.weight, before[0]));
      CHECK(same_bits(previous.exp_avg, before[1]));
      CHECK(same_bits(previous.exp_avg_sq, before[2]));
      CHECK_FALSE(same_bits(weight, before[0]));
    }
  }
}

TEST_CASE("lion over several steps, and what it overwrites", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const int64_t size : {1, 3, 4, 1000, 4099}) {
    for (const bool odd : {false, true}) {
      CAPTURE(size, odd);
      compare([&](const Backend& b) -> std::vector<Tensor> {
        const auto place = [&](const Tensor& x) { return odd ? misaligned(x) : x; };
        Tensor weight = place(b.random({size}, at::kFloat, 1));
        Tensor exp_avg = place(b.random({size}, at::kFloat, 2));
        Tensor compute = place(b.random({size}, at::kBFloat16, 3));
        const kernels::StepPrevious previous{.weight = place(b.random({size}, at::kFloat, 4)),
                                             .exp_avg = place(b.random({size}, at::kFloat, 5)),
                                             .exp_avg_sq = {}};
        for (uint64_t step = 0; step < 3; ++step) {
          b(kernels::lion, {{weight,
                             place(b.random({size}, at::kFloat, 10 + step)),
                             exp_avg,
                             {},
                             compute,
                             StepArgs{.lr = 0.01, .beta2 = 0.99, .weight_decay = 0.1, .grad_scale = 0.3},
                             previous}});
        }
        return {weight, exp_avg, compute, previous.weight, previous.exp_avg};
      });
    }
  }
}

TEST_CASE("adamw and lion step many parts as they step each alone", "[gpu]") {
  if (!can_run()) {
    return;
  }
  // More parts than fit into one launch, of all sizes, some without elements; scalars and buffers differ.
  const auto step = [](const Backend& b, bool together) -> std::vector<Tensor> {
    std::vector<kernels::StepPart> adamw, lion;
    std::vector<Tensor> all;
    for (int64_t k = 0; k < 150; ++k) {
      const int64_t size = k * 29 % 13 == 0 ? k * 37 : k % 5;
      const auto values = [&](uint64_t kind) {
        const Tensor x = b.random({size}, at::kFloat, 8 * static_cast<uint64_t>(k) + kind);
        all.push_back(k % 3 == 0 ? misaligned(x) : x);
        return all.back();
      };
      const auto rounded = [&]() -> std::optional<Tensor> {
        if (k % 2 == 0) return std::nullopt;
        return all.emplace_back(b.random({size}, at::kBFloat16, 1));
      };
      const double lr = 0.01 * static_cast<double>(k);
      adamw.push_back({values(0), values(1), values(2), values(3).abs_(), rounded(),
                       StepArgs{.lr = lr, .weight_decay = lr, .grad_scale = 0.5, .step = k + 1},
                       std::nullopt});
      lion.push_back({values(4),
                      values(5),
                      values(6),
                      {},
                      rounded(),
                      StepArgs{.lr = lr, .beta2 = 0.99, .weight_decay = lr},
                      std::nullopt});
    }
    if (together) {
      b(kernels::adamw, adamw);
      b(kernels::lion, lion);
    } else {
      for (const auto& part : adamw) b(kernels::adamw, {part});
      for (const auto& part : lion) b(kernels::lion, {part});
    }
    return all;
  };
  compare([&](const Backend& b) { return step(b, true); });
  for (const Backend& b : {reference(), subject()}) {
    const auto together = step(b, true);
    const auto alone = step(b, false);
    for (std::size_t i = 0; i < together.size(); ++i) {
      REQUIRE(same_bits(together[i], alone[i]));
    }
  }
}

TEST_CASE("adamw and lion round bfloat16 moments by the same random bits", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const kernels::RoundingBits whole{.key = 0x123456789abcdefU};
  const kernels::RoundingBits columns{.key = 7, .first = 3, .run = 37, .stride = 100, .offset = 40};
  for (const int64_t size : {1, 3, 4, 1000, 4099}) {
    for (const auto& rounding : {whole, columns}) {
      for (const bool odd : {false, true}) {
        CAPTURE(size, rounding.run, odd);
        // Every product is exact, so that moments have equal bits before they are rounded, with FMA or not.
        const auto step = [&](const Backend& b) -> std::vector<Tensor> {
          const auto place = [&](const Tensor& x) { return odd ? misaligned(x) : x; };
          const auto values = [&](uint64_t seed) { return b.random({size}, at::kBFloat16, seed); };
          Tensor weight = place(b.random({size}, at::kFloat, 1)), m = place(values(2));
          Tensor v = place(values(3).abs()), momentum = place(values(4));
          const Tensor grad = place(values(5).to(at::kFloat));
          const kernels::StepPrevious previous{.weight = place(b.output({size}, at::kFloat)),
                                               .exp_avg = place(values(6)),
                                               .exp_avg_sq = place(values(7))};
          const StepArgs args{.lr = 0.01, .beta1 = 1 - 0x1p-4, .beta2 = 1 - 0x1p-5};
          b(kernels::adamw, {{weight, grad, m, v, std::nullopt, args, previous, rounding}});
          b(kernels::lion, {{weight, grad, momentum, {}, std::nullopt, args, std::nullopt, rounding}});
          return {m, v, momentum, previous.exp_avg, previous.exp_avg_sq};
        };
        const auto expected = step(reference()), actual = step(subject());
        for (std::size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(expected[i], actual[i]));
      }
    }
  }
}

TEST_CASE("momentum and descend", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const int64_t size : {1, 3, 4, 1000, 4099}) {
      for (const bool odd : {false, true}) {
        CAPTURE(type, size, odd);
        compare([&](const Backend& b) -> std::vector<Tensor> {
          const auto place = [&](const Tensor& x) { return odd ? misaligned(x) : x; };
          Tensor average = place(b.random({size}, at::kFloat, 1));
          const Tensor grad = place(b.random({size}, at::kFloat, 2));
          Tensor next = place(b.random({size}, type, 3));
          Tensor weight = place(b.random({size}, at::kFloat, 4));
          Tensor compute = place(b.random({size}, at::kBFloat16, 5));
          b(kernels::momentum, average, grad, average, /*beta=*/0.95, /*grad_scale=*/0.3);
          b(kernels::momentum, average, grad, next, /*beta=*/0.95, /*grad_scale=*/0.3);
          // From values that do not depend on the rounding of `next`.
          b(kernels::descend, weight, place(b.random({size}, type, 6)), compute, /*decay=*/0.9, /*step=*/0.1);
          return {average, next, weight, compute};
        });
      }
    }
  }
}

TEST_CASE("adamw and add_squares do not depend on alignment", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  const auto run = [&](bool odd) -> std::vector<Tensor> {
    const auto place = [&](const Tensor& x) { return odd ? misaligned(x) : x; };
    Tensor weight = place(b.random({1003}, at::kFloat, 1));
    Tensor exp_avg = place(b.random({1003}, at::kFloat, 2));
    Tensor exp_avg_sq = place(b.random({1003}, at::kFloat, 3).abs());
    Tensor compute = place(b.random({1003}, at::kBFloat16, 4));
    const Tensor grad = place(b.random({1003}, at::kFloat, 5));
    Tensor squares = at::zeros({kernels::exact_words}, at::TensorOptions(at::kLong).device(b.device));
    b(kernels::adamw,
      {{weight, grad, exp_avg, exp_avg_sq, compute, StepArgs{.lr = 0.01, .step = 7}, std::nullopt}});
    b(kernels::add_squares, {{grad, 40}}, squares);
    return {weight, exp_avg, exp_avg_sq, compute, squares};
  };
  const auto even = run(false);
  const auto odd = run(true);
  for (std::size_t i = 0; i < even.size(); ++i) {
    CHECK(same_bits(even[i], odd[i]));
  }
}

namespace {

// The sum of the words on any device.
kernels::ExactSum exact_sum(const Tensor& words) {
  const Tensor host = words.cpu();
  return kernels::ExactSum(
      std::span<const int64_t, kernels::exact_words>(host.const_data_ptr<int64_t>(), kernels::exact_words));
}

}  // namespace

TEST_CASE("add_squares", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const int64_t size : {0, 1, 3, 5, 4096, 100003}) {
    for (const int64_t place : {0, 3, 1000, 1024}) {
      CAPTURE(size, place);
      compare(
          [&](const Backend& b) -> std::vector<Tensor> {
            Tensor words = at::zeros({kernels::exact_words}, at::TensorOptions(at::kLong).device(b.device));
            b(kernels::add_squares, {{b.random({size}, at::kFloat, 1), place}}, words);
            return {at::scalar_tensor(exact_sum(words).rounded(), at::kDouble)};
          },
          1e-12);
    }
  }
}

TEST_CASE("add_squares gives equal bits however a buffer is cut into whole blocks", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  const auto sum = [&](const Tensor& x, const std::vector<int64_t>& cuts) {
    Tensor words = at::zeros({kernels::exact_words}, at::TensorOptions(at::kLong).device(b.device));
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      b(kernels::add_squares, {{x.narrow(0, begin, end - begin), begin}}, words);
      begin = end;
    }
    return exact_sum(words).rounded();
  };
  Tensor x = b.random({10000}, at::kFloat, 1, 1e15);
  x.narrow(0, 5000, 3000).mul_(1e-30);
  const double whole = sum(x, {10000});
  CHECK(sum(x, {1024, 4096, 10000}) == whole);
  CHECK(sum(x, {2048, 3072, 9216, 10000}) == whole);
  x[7000] = std::nan("");
  CHECK(std::isnan(sum(x, {10000})));
}

TEST_CASE("add_squares of many parts gives the bits of one after the other", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const Backend& b : {reference(), subject()}) {
    Tensor together = at::zeros({kernels::exact_words}, at::TensorOptions(at::kLong).device(b.device));
    Tensor alone = together.clone();
    std::vector<kernels::BufferPart> parts;
    for (int64_t k = 0; k < 250; ++k) {  // more than one launch takes
      const int64_t size = k % 7 == 0 ? 97 * k : k % 4;
      const Tensor x = b.random({size}, at::kFloat, static_cast<uint64_t>(k), std::pow(10.0, k % 30 - 15));
      parts.push_back({k % 3 == 0 ? misaligned(x) : x, k * 61 % 3000});
      b(kernels::add_squares, {parts.back()}, alone);
    }
    b(kernels::add_squares, parts, together);
    CHECK(exact_sum(together).rounded() == exact_sum(alone).rounded());
    CHECK(exact_sum(alone).rounded() > 0);
    parts[0].x = at::full({3}, std::nan(""), together.options().dtype(at::kFloat));
    b(kernels::add_squares, parts, together);
    CHECK(std::isnan(exact_sum(together).rounded()));
  }
}

TEST_CASE("normal values have the CPU's bits, whatever slice is made", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const int64_t size : {0, 1, 6, 1023, 40001}) {
    for (const int64_t first : {int64_t{0}, int64_t{3}, int64_t{1} << 40}) {
      CAPTURE(size, first);
      const Work work = [&](const Backend& b) -> std::vector<Tensor> {
        Tensor out = b.output({size}, at::kFloat);
        b(kernels::normal_values, out, 0x0123456789abcdefULL, first, 0.02);
        return {out};
      };
      compare(work);
      CHECK(same_bits(work(reference())[0], work(subject())[0]));
    }
  }
}

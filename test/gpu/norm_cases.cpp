
#include <vector>

#include "test/gpu/kernel_support.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::test;
namespace kernels = pptrain::kernels;
using kernels::RopeTable;

namespace {

struct Size {
  int64_t rows;
  int64_t dim;
};
// Odd sizes, one element, less than a warp, a warp for each row, several packs a thread, several strips of
// rows, rows too wide for registers, and for shared memory.
const std::vector<Size> sizes{{1, 1},    {3, 8},    {5, 7},    {4, 129},   {37, 64},  {9, 1024},
                              {2, 1032}, {2, 5000}, {2, 8200}, {1, 12288}, {1, 16400}};

struct HeadsSize {
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
};
const std::vector<HeadsSize> heads_sizes{{1, 1, 2},  {6, 5, 6},    {10, 3, 16}, {3, 70, 64},
                                         {6, 4, 80}, {9, 33, 128}, {2, 2, 640}, {2050, 1, 8}};

// The q part of a fused [tokens, (heads + 2) * head_dim], `shift` elements in.
Tensor view_of_fused(const Tensor& fused, const HeadsSize& s, int64_t shift) {
  const int64_t width = (s.heads + 2) * s.head_dim;
  return fused.as_strided({s.tokens, s.heads, s.head_dim}, {width, s.head_dim, 1}, shift);
}

Tensor fused_input(const Backend& b, const HeadsSize& s, at::ScalarType type, uint64_t seed, int64_t shift) {
  return view_of_fused(b.random({s.tokens, (s.heads + 2) * s.head_dim}, type, seed), s, shift);
}

Tensor fused_output(const Backend& b, const HeadsSize& s, at::ScalarType type, int64_t shift) {
  return view_of_fused(b.output({s.tokens, (s.heads + 2) * s.head_dim}, type), s, shift);
}

RopeTable table(const Backend& b, int64_t positions, int64_t head_dim) {
  const Tensor frequency = at::pow(10000.0, at::arange(0, head_dim, 2, at::kDouble).neg() / head_dim);
  const Tensor angle = at::outer(at::arange(positions, at::kDouble), frequency);
  return {angle.cos().to(b.device, at::kFloat), angle.sin().to(b.device, at::kFloat)};
}

Tensor positions_of(const Backend& b, const HeadsSize& s) {
  return b.random_integers(s.tokens + 3, s.tokens, 9).to(at::kInt);
}

}  // namespace

TEST_CASE("rms_norm", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, dim] : sizes) {
      CAPTURE(type, rows, dim);
      compare([&, rows = rows, dim = dim](const Backend& b) -> std::vector<Tensor> {
        Tensor y = b.output({rows, dim}, type);
        Tensor rstd = b.output({rows}, at::kFloat);
        b(kernels::rms_norm, b.random({rows, dim}, type, 1), b.random({dim}, at::kFloat, 2), eps, y, rstd);
        return {y, rstd};
      });
    }
  }
}

TEST_CASE("add_rms_norm equals addition then rms_norm, bit for bit, in place too", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, dim] : sizes) {
      CAPTURE(type, rows, dim);
      const Work fused = [&, rows = rows, dim = dim](const Backend& b) -> std::vector<Tensor> {
        Tensor sum = b.random({rows, dim}, type, 1);
        Tensor y = b.output({rows, dim}, type);
        Tensor rstd = b.output({rows}, at::kFloat);
        b(kernels::add_rms_norm, sum, b.random({rows, dim}, type, 3), b.random({dim}, at::kFloat, 2), eps,
          sum, y, rstd);
        return {sum, y, rstd};
      };
      compare(fused);
      const auto result = fused(subject());
      const Tensor sum = subject().random({rows, dim}, type, 1) + subject().random({rows, dim}, type, 3);
      CHECK(same_bits(result[0], sum));
      Tensor y = subject().output({rows, dim}, type);
      Tensor rstd = subject().output({rows}, at::kFloat);
      subject()(kernels::rms_norm, sum, subject().random({dim}, at::kFloat, 2), eps, y, rstd);
      CHECK(same_bits(result[1], y));
      CHECK(same_bits(result[2], rstd));
    }
  }
}

TEST_CASE("rms_norm_backward, with and without residual, in place too", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& [rows, dim] : sizes) {
      for (const bool in_place : {false, true}) {
        CAPTURE(type, rows, dim, in_place);
        compare(
            [&, rows = rows, dim = dim](const Backend& b) -> std::vector<Tensor> {
              const Tensor x = b.random({rows, dim}, type, 1);
              const Tensor weight = b.random({dim}, at::kFloat, 2);
              Tensor rstd = b.output({rows}, at::kFloat);
              Tensor y = b.output({rows, dim}, type);
              b(kernels::rms_norm, x, weight, eps, y, rstd);
              Tensor dy = b.random({rows, dim}, type, 4);
              const std::optional<Tensor> residual =
                  in_place ? std::nullopt : std::optional(b.random({rows, dim}, type, 5));
              Tensor dx = in_place ? dy : b.output({rows, dim}, type);
              Tensor weight_grad = b.random({dim}, at::kFloat, 6);
              b(kernels::rms_norm_backward, dy, x, weight, rstd, residual, dx, weight_grad);
              return {dx, weight_grad};
            },
            1e-4);
      }
    }
  }
}

TEST_CASE("rms_norm_backward with the largest number of strips", "[gpu]") {
  if (!can_run()) {
    return;
  }
  compare(
      [&](const Backend& b) -> std::vector<Tensor> {
        const Tensor dy = b.random({8500, 3}, at::kFloat, 4);
        Tensor dx = b.output({8500, 3}, at::kFloat);
        Tensor weight_grad = b.random({3}, at::kFloat, 6);
        b(kernels::rms_norm_backward, dy, b.random({8500, 3}, at::kFloat, 1), b.random({3}, at::kFloat, 2),
          b.random({8500}, at::kFloat, 3).abs(), std::nullopt, dx, weight_grad);
        return {dx, weight_grad};
      },
      1e-3);
}

TEST_CASE("results do not depend on alignment", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  const Tensor x = b.random({6, 256}, at::kBFloat16, 1);
  const Tensor dy = b.random({6, 256}, at::kBFloat16, 3);
  const Tensor weight = b.random({256}, at::kFloat, 2);
  const auto run = [&](const Tensor& x_at, const Tensor& dy_at) -> std::vector<Tensor> {
    Tensor y = b.output({6, 256}, at::kBFloat16);
    Tensor dx = b.output({6, 256}, at::kBFloat16);
    Tensor rstd = b.output({6}, at::kFloat);
    Tensor weight_grad = b.random({256}, at::kFloat, 6);
    Tensor bias_grad = b.random({256}, at::kFloat, 7);
    b(kernels::rms_norm, x_at, weight, eps, y, rstd);
    b(kernels::rms_norm_backward, dy_at, x_at, weight, rstd, std::nullopt, dx, weight_grad);
    b(kernels::accumulate_bias_gradient, dy_at, bias_grad);
    return {y, rstd, dx, weight_grad, bias_grad};
  };
  const auto aligned = run(x, dy);
  const auto odd = run(misaligned(x), misaligned(dy));
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    CHECK(same_bits(aligned[i], odd[i]));
  }
}

TEST_CASE("norm_rope", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& s : heads_sizes) {
      for (const int64_t shift : {int64_t{0}, s.head_dim, int64_t{1}}) {
        CAPTURE(type, s.tokens, s.heads, s.head_dim, shift);
        compare([&](const Backend& b) -> std::vector<Tensor> {
          const Tensor x = fused_input(b, s, type, 1, shift);
          const Tensor weight = b.random({s.head_dim}, at::kFloat, 2);
          const Tensor rstd = b.output({s.tokens, s.heads}, at::kFloat);
          const Tensor normed = fused_output(b, s, type, 0);
          b(kernels::norm_rope, {{.x = x, .y = normed, .weight = weight, .rstd = rstd}}, eps,
            table(b, s.tokens + 3, s.head_dim), positions_of(b, s));
          const Tensor in_place = x.clone(at::MemoryFormat::Contiguous);
          b(kernels::norm_rope, {{.x = in_place, .y = in_place}}, eps, table(b, s.tokens + 3, s.head_dim),
            positions_of(b, s));
          return {normed, rstd, in_place};
        });
      }
    }
  }
}

TEST_CASE("norm_rope writes nothing but its view", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  for (const auto type : types) {
    for (const int64_t shift : {0, 16, 1}) {
      const HeadsSize s{6, 3, 16};
      const Tensor fused = b.output({6, 5 * 16}, type);
      const Tensor y = view_of_fused(fused, s, shift);
      b(kernels::norm_rope,
        {{.x = fused_input(b, s, type, 1, 0),
          .y = y,
          .weight = b.random({16}, at::kFloat, 2),
          .rstd = b.output({6, 3}, at::kFloat)}},
        eps, table(b, 9, 16), positions_of(b, s));
      CHECK(y.isnan().sum().item<int64_t>() == 0);
      y.zero_();
      CHECK(fused.isnan().sum().item<int64_t>() == 6 * 2 * 16);
    }
  }
}

TEST_CASE("norm_rope_backward", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& s : heads_sizes) {
      for (const int64_t shift : {int64_t{0}, s.head_dim, int64_t{1}}) {
        CAPTURE(type, s.tokens, s.heads, s.head_dim, shift);
        compare(
            [&](const Backend& b) -> std::vector<Tensor> {
              const Tensor x = fused_input(b, s, type, 1, 0);
              const Tensor dy = b.random({s.tokens, s.heads, s.head_dim}, type, 3);
              const Tensor weight = b.random({s.head_dim}, at::kFloat, 2);
              const Tensor rstd = b.random({s.tokens, s.heads}, at::kFloat, 4).abs();
              const RopeTable rope = table(b, s.tokens + 3, s.head_dim);
              const auto backward = [&](const Tensor& from, const Tensor& to, const Tensor& weight_grad) {
                b(kernels::norm_rope_backward,
                  {{.dy = from,
                    .dx = to,
                    .x = x,
                    .weight = weight,
                    .rstd = rstd,
                    .weight_grad = weight_grad}},
                  rope, positions_of(b, s));
              };
              const Tensor dx = fused_output(b, s, type, shift);
              const Tensor weight_grad = b.random({s.head_dim}, at::kFloat, 5);
              backward(dy, dx, weight_grad);
              const Tensor in_place = dy.clone();
              b(kernels::norm_rope_backward, {{.dy = in_place, .dx = in_place}}, rope, positions_of(b, s));
              const Tensor normed = dy.clone();
              const Tensor same_grad = b.random({s.head_dim}, at::kFloat, 5);
              backward(normed, normed, same_grad);
              CHECK(same_bits(normed, dx));
              CHECK(same_bits(same_grad, weight_grad));
              return {dx, weight_grad, in_place};
            },
            2e-4);
      }
    }
  }
}

namespace {

// q and k of a fused buffer with room for v, `shift` elements in.
struct FusedSize {
  int64_t tokens, q_heads, k_heads, head_dim, shift;

  HeadsSize width() const { return {tokens, q_heads + k_heads, head_dim}; }
  std::vector<Tensor> split(const Tensor& both) const {
    return {both.narrow(1, 0, q_heads), both.narrow(1, q_heads, k_heads)};
  }
};
// As in Qwen3, one token, strips that end within a token, one head of each, k before many q, no k, odd dims,
// heads of several packs a lane.
const std::vector<FusedSize> fused_sizes{{70, 16, 8, 128, 0}, {1, 32, 8, 128, 0}, {300, 5, 3, 64, 0},
                                         {33, 1, 1, 64, 0},   {7, 2, 70, 16, 0},  {9, 3, 0, 32, 0},
                                         {6, 3, 2, 6, 1},     {5, 3, 2, 128, 1},  {4, 2, 1, 640, 0},
                                         {3, 1, 2, 1024, 0},  {2100, 2, 1, 8, 0}};

// Outputs of norm_rope and of its gradient, for q and k in one call or in two.
std::vector<Tensor> run_fused(const Backend& b, const FusedSize& s, at::ScalarType type, bool norm,
                              bool at_once) {
  const HeadsSize width = s.width();
  const RopeTable rope = table(b, s.tokens + 3, s.head_dim);
  const Tensor positions = positions_of(b, width);
  const auto x = s.split(fused_input(b, width, type, 1, s.shift)),
             dy = s.split(fused_input(b, width, type, 2, 0));
  const auto y = s.split(fused_output(b, width, type, 0)),
             dx = s.split(fused_output(b, width, type, s.shift));
  std::vector<Tensor> results;
  std::vector<kernels::HeadsPart> parts;
  std::vector<kernels::HeadsGradient> gradients;
  for (std::size_t i = 0; i < 2; ++i) {
    kernels::HeadsPart part{.x = x[i], .y = y[i]};
    kernels::HeadsGradient gradient{.dy = dy[i], .dx = dx[i]};
    results.insert(results.end(), {y[i], dx[i]});
    if (norm) {
      gradient.x = x[i];
      gradient.weight = part.weight = b.random({s.head_dim}, at::kFloat, 3 + i);
      gradient.rstd = part.rstd = b.output({s.tokens, x[i].size(1)}, at::kFloat);
      gradient.weight_grad = b.random({s.head_dim}, at::kFloat, 5 + i);
      results.insert(results.end(), {part.rstd, *gradient.weight_grad});
    }
    parts.push_back(part);
    gradients.push_back(gradient);
  }
  if (at_once) {
    b(kernels::norm_rope, parts, eps, rope, positions);
    b(kernels::norm_rope_backward, gradients, rope, positions);
  } else {
    for (std::size_t i = 0; i < 2; ++i) {
      b(kernels::norm_rope, {parts[i]}, eps, rope, positions);
      b(kernels::norm_rope_backward, {gradients[i]}, rope, positions);
    }
  }
  return results;
}

}  // namespace

TEST_CASE("norm_rope of q and k at once", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& s : fused_sizes) {
      for (const bool norm : {true, false}) {
        CAPTURE(type, s.tokens, s.q_heads, s.k_heads, s.head_dim, s.shift, norm);
        compare([&](const Backend& b) { return run_fused(b, s, type, norm, true); }, 3e-4);
      }
    }
  }
}

// The division of the weight gradients' sums depends on everything in a call.
TEST_CASE("norm_rope of q and k at once has the bits of two calls but in sums", "[gpu]") {
  if (!can_run()) {
    return;
  }
  for (const auto type : types) {
    for (const auto& s : fused_sizes) {
      CAPTURE(type, s.tokens, s.q_heads, s.k_heads, s.head_dim, s.shift);
      const auto once = run_fused(subject(), s, type, true, true),
                 twice = run_fused(subject(), s, type, true, false);
      for (const std::size_t i : {0, 1, 2, 4, 5, 6}) {
        CHECK(same_bits(once[i], twice[i]));
      }
    }
  }
}

TEST_CASE("norm_rope gives NaN for a position outside the table", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  const Tensor x = b.random({2, 1, 8}, at::kFloat, 1);
  const Tensor positions = at::full({2}, 3, at::TensorOptions().dtype(at::kInt).device(b.device));
  positions[1].fill_(4);
  b(kernels::norm_rope, {{.x = x, .y = x}}, eps, table(b, 4, 8), positions);
  CHECK(x[0].isnan().sum().item<int64_t>() == 0);
  CHECK(x[1].isnan().sum().item<int64_t>() == 8);
}

TEST_CASE("no rows, nothing done", "[gpu]") {
  if (!can_run()) {
    return;
  }
  const Backend& b = subject();
  Tensor y = b.output({0, 16}, at::kFloat);
  Tensor rstd = b.output({0}, at::kFloat);
  Tensor grad = b.random({16}, at::kFloat, 1);
  const Tensor before = grad.clone();
  b(kernels::rms_norm, y, grad, eps, y, rstd);
  b(kernels::rms_norm_backward, y, y, grad, rstd, std::nullopt, y, grad);
  b(kernels::accumulate_bias_gradient, y, grad);
  CHECK(same_bits(grad, before));
}

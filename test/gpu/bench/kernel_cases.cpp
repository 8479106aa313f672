#include "test/gpu/bench/kernel_cases.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <utility>

#include "core/kernels/exact_sum.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"
#include "core/nn/rope.h"
#include "core/nn/vocabulary.h"

namespace pptrain::bench {
namespace {

using at::Tensor;
using Work = std::function<void()>;

constexpr double kEps = 1e-5;
constexpr auto kCompute = at::kBFloat16;

Tensor activations(at::Device device, int64_t rows, int64_t dim) {
  return Bench::random_on(device, {rows, dim}, kCompute);
}
Tensor gradients(at::Device device, at::IntArrayRef shape) {
  return Bench::random_on(device, shape, kCompute, 1e-3);
}
Tensor floats(at::Device device, at::IntArrayRef shape, double scale = 1) {
  return Bench::random_on(device, shape, at::kFloat, scale);
}
at::TensorOptions float_on(at::Device device) {
  return at::TensorOptions().dtype(at::kFloat).device(device);
}

void add_norms(std::vector<KernelCase>& cases, int64_t rows, int64_t dim) {
  struct Norm {
    Tensor x, weight, y, rstd;
  };
  const auto norm = [=](at::Device device) {
    const Tensor x = activations(device, rows, dim);
    return Norm{.x = x,
                .weight = at::ones({dim}, float_on(device)),
                .y = at::empty_like(x),
                .rstd = at::ones({rows}, float_on(device))};
  };
  cases.push_back({"rms_norm", [=](at::Device device) -> Work {
                     return [n = norm(device)]() mutable {
                       kernels::rms_norm(n.x, n.weight, kEps, n.y, n.rstd);
                     };
                   }});
  cases.push_back({"add_rms_norm", [=](at::Device device) -> Work {
                     const Tensor delta = activations(device, rows, dim);
                     return [n = norm(device), delta, sum = at::empty_like(delta)]() mutable {
                       kernels::add_rms_norm(n.x, delta, n.weight, kEps, sum, n.y, n.rstd);
                     };
                   }});
  cases.push_back({"rms_norm_backward + residual", [=](at::Device device) -> Work {
                     return [n = norm(device), dy = gradients(device, {rows, dim}),
                             residual = gradients(device, {rows, dim}),
                             weight_grad = floats(device, {dim})]() mutable {
                       kernels::rms_norm_backward(dy, n.x, n.weight, n.rstd, residual, n.y, weight_grad);
                     };
                   }});
}

// q and k as views of the fused GEMM's result: rotated together in place, or each with a norm into its own
// tensor.
struct HeadsWork {
  std::vector<kernels::HeadsPart> parts;
  std::vector<kernels::HeadsGradient> gradients;
  kernels::RopeTable rope;
  Tensor positions;
};

HeadsWork heads_work(at::Device device, const Sizes& sizes, int64_t rows, bool normed) {
  const int64_t heads = sizes.heads, kv_heads = sizes.kv_heads, dim = sizes.head_dim;
  const Tensor qkv = Bench::random_on(device, {rows, heads + 2 * kv_heads, dim}, kCompute);
  HeadsWork work{.parts = {},
                 .gradients = {},
                 .rope = nn::make_rope_table({.dim = dim, .theta = 500000}, rows, device),
                 .positions = at::arange(rows, float_on(device).dtype(at::kInt))};
  if (!normed) {
    const Tensor both = qkv.narrow(1, 0, heads + kv_heads);
    work.parts.push_back({.x = both, .y = both});
    work.gradients.push_back({.dy = both, .dx = both});
    return work;
  }
  const Tensor dqkv = gradients(device, qkv.sizes());
  for (const auto& [first, count] : {std::pair{int64_t{0}, heads}, std::pair{heads, kv_heads}}) {
    const Tensor x = qkv.narrow(1, first, count), dx = dqkv.narrow(1, first, count);
    const Tensor weight = at::ones({dim}, float_on(device)), rstd = at::ones({rows, count}, float_on(device));
    work.parts.push_back({.x = x, .y = at::empty(x.sizes(), x.options()), .weight = weight, .rstd = rstd});
    work.gradients.push_back(
        {.dy = dx, .dx = dx, .x = x, .weight = weight, .rstd = rstd, .weight_grad = floats(device, {dim})});
  }
  return work;
}

void add_heads(std::vector<KernelCase>& cases, const Sizes& sizes, int64_t rows, bool normed) {
  const std::string with = normed ? " with norm" : "";
  cases.push_back({"norm_rope" + with, [=](at::Device device) -> Work {
                     return [w = heads_work(device, sizes, rows, normed)] {
                       kernels::norm_rope(w.parts, kEps, w.rope, w.positions);
                     };
                   }});
  cases.push_back({"norm_rope_backward" + with, [=](at::Device device) -> Work {
                     return [w = heads_work(device, sizes, rows, normed)] {
                       kernels::norm_rope_backward(w.gradients, w.rope, w.positions);
                     };
                   }});
}

void add_swiglu(std::vector<KernelCase>& cases, int64_t rows, int64_t dim) {
  cases.push_back({"swiglu", [=](at::Device device) -> Work {
                     const Tensor gate_up = activations(device, rows, 2 * dim);
                     return [gate_up, y = at::empty({rows, dim}, gate_up.options())]() mutable {
                       kernels::swiglu(gate_up, y);
                     };
                   }});
  for (const bool again : {false, true}) {
    cases.push_back(
        {again ? "swiglu_backward with swiglu again" : "swiglu_backward", [=](at::Device device) -> Work {
           const Tensor gate_up = activations(device, rows, 2 * dim);
           const Tensor dy = gradients(device, {rows, dim});
           const auto y = again ? std::optional(at::empty_like(dy)) : std::nullopt;
           return [gate_up, dy, dgate_up = at::empty_like(gate_up), y]() mutable {
             kernels::swiglu_backward(dy, gate_up, dgate_up, y);
           };
         }});
  }
}

// Of activations by rows, and of a weight by columns.
void add_fp8(std::vector<KernelCase>& cases, int64_t rows, int64_t in, int64_t out) {
  const auto copy = [](int64_t rows, int64_t cols, at::Device device) {
    return std::pair(at::empty({rows, cols}, at::TensorOptions().dtype(at::kFloat8_e4m3fn).device(device)),
                     at::empty({rows}, float_on(device)));
  };
  cases.push_back({"quantize_rows", [=](at::Device device) -> Work {
                     return [x = activations(device, rows, in), to = copy(rows, in, device)]() mutable {
                       kernels::quantize_rows(x, to.first, to.second);
                     };
                   }});
  cases.push_back({"quantize_columns", [=](at::Device device) -> Work {
                     return [x = activations(device, out, in), to = copy(in, out, device)]() mutable {
                       kernels::quantize_columns(x, to.first, to.second);
                     };
                   }});
}

// Logits of one chunk of the head. With gradients they are overwritten: later runs read the gradients of
// earlier ones, which are not zero.
void add_loss(std::vector<KernelCase>& cases, int64_t rows, int64_t vocab) {
  for (const bool gradient : {false, true}) {
    cases.push_back(
        {gradient ? "cross_entropy with gradient" : "cross_entropy", [=](at::Device device) -> Work {
           return [logits = activations(device, rows, vocab),
                   labels = Bench::random_integers_on(device, vocab, rows),
                   loss = at::empty({rows}, float_on(device)),
                   gradient]() mutable { kernels::cross_entropy(logits, labels, loss, gradient); };
         }});
  }
}

void add_embedding(std::vector<KernelCase>& cases, int64_t rows, int64_t vocab, int64_t dim) {
  cases.push_back({"embedding", [=](at::Device device) -> Work {
                     const Tensor weight = activations(device, vocab, dim);
                     return [weight, vocab, tokens = Bench::random_integers_on(device, vocab, rows),
                             out = at::empty({rows, dim}, weight.options())]() mutable {
                       kernels::embedding(tokens, weight, {.first = 0, .vocab = vocab}, out);
                     };
                   }});
  cases.push_back({"embedding_backward", [=](at::Device device) -> Work {
                     return [vocab, tokens = Bench::random_integers_on(device, vocab, rows),
                             dy = gradients(device, {rows, dim}),
                             weight_grad = floats(device, {vocab, dim}, 1e-3)]() mutable {
                       kernels::embedding_backward(tokens, dy, {.first = 0, .vocab = vocab}, weight_grad);
                     };
                   }});
}

// All parameters of a block in one buffer.
void add_parameters(std::vector<KernelCase>& cases, int64_t count) {
  cases.push_back(
      {"adamw", [=](at::Device device) -> Work {
         const auto values = [&](double scale) { return floats(device, {count}, scale); };
         return [weight = values(0.02), grad = values(1e-3), exp_avg = values(1e-3),
                 exp_avg_sq = values(1e-3).square_(),
                 compute = at::empty({count}, float_on(device).dtype(kCompute))]() mutable {
           kernels::adamw(
               {{weight, grad, exp_avg, exp_avg_sq, compute, {.lr = 1e-6, .step = 100}, std::nullopt}});
         };
       }});
  cases.push_back(
      {"add_squares", [=](at::Device device) -> Work {
         return [x = floats(device, {count}, 1e-3),
                 sum = at::zeros({kernels::exact_words}, float_on(device).dtype(at::kLong))]() mutable {
           kernels::add_squares({{x, 0}}, sum);
         };
       }});
  cases.push_back({"normal_values", [=](at::Device device) -> Work {
                     return [out = at::empty({count}, float_on(device))]() mutable {
                       kernels::normal_values(out, /*key=*/1, /*first=*/0, /*std=*/0.02);
                     };
                   }});
}

}  // namespace

std::vector<KernelCase> kernel_cases(const Sizes& sizes) {
  const int64_t rows = sizes.max_rows();
  const int64_t chunk = nn::LinearCrossEntropy::rows_per_chunk(
      rows, sizes.vocab * 2, nn::LinearCrossEntropy::default_chunk_bytes(at::kCUDA));
  std::vector<KernelCase> cases;
  add_norms(cases, rows, sizes.hidden);
  add_heads(cases, sizes, rows, /*normed=*/false);
  add_heads(cases, sizes, rows, /*normed=*/true);
  add_swiglu(cases, rows, sizes.ffn);
  add_fp8(cases, rows, sizes.hidden, 2 * sizes.ffn);
  add_loss(cases, chunk, sizes.vocab);
  add_embedding(cases, rows, sizes.vocab, sizes.hidden);
  cases.push_back({"accumulate_bias_gradient", [=](at::Device device) -> Work {
                     return [dy = gradients(device, {rows, sizes.qkv()}),
                             bias_grad = floats(device, {sizes.qkv()})]() mutable {
                       kernels::accumulate_bias_gradient(dy, bias_grad);
                     };
                   }});
  add_parameters(cases, sizes.hidden * (sizes.qkv() + sizes.heads * sizes.head_dim + 3 * sizes.ffn));
  return cases;
}

}  // namespace pptrain::bench

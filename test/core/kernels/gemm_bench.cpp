// The speed of one core on the GEMMs of the shipped jobs, in bfloat16 and in float32, compared with
// LibTorch's GEMM in float32. Run by name: OMP_NUM_THREADS=1 taskset -c 0 build/test_core_kernels "[.bench]".
// PPTRAIN_ISA chooses our instruction set, MKL_ENABLE_INSTRUCTIONS=AVX2 the library's on Intel's processors.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <vector>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"
#include "test/support/catch.h"
#include "test/support/thread_seconds.h"

using namespace pptrain;
using at::Tensor;
namespace cpu = pptrain::kernels::cpu;

namespace {

using Work = std::function<void()>;

// One GEMM: ours in bfloat16 and in float32, the library's in float32.
struct Row {
  const char* job;
  const char* product;
  int64_t m, n, k;
  Work bf16, f32, library;
};

// The best time of many turns; the three GEMMs take turns.
void print(const Row& row) {
  const double flops = 2.0 * static_cast<double>(row.m * row.n * row.k);
  double best[3] = {1e9, 1e9, 1e9};
  const Work* const work[3] = {&row.bf16, &row.f32, &row.library};
  const int turns = static_cast<int>(std::clamp(5e9 / flops, 5.0, 500.0));
  for (int turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < 3; ++i) best[i] = std::min(best[i], test::thread_seconds(*work[i]));
  }
  fmt::print("| {} {} | {} x {} x {} | {:.0f} | {:.0f} | {:.0f} |\n", row.job, row.product, row.m, row.n,
             row.k, flops / best[0] * 1e-9, flops / best[1] * 1e-9, flops / best[2] * 1e-9);
}

// Operands in float32 and in bfloat16.
struct Pair {
  Tensor wide, narrow;
  explicit Pair(at::IntArrayRef shape) : wide(at::randn(shape)), narrow(wide.to(at::kBFloat16)) {}
};

// A linear layer in -> out for this number of tokens: forward, gradient of x, gradient of the weight.
void print_layer(const char* job, const char* layer, int64_t tokens, int64_t in, int64_t out) {
  const Pair x({tokens, in}), weight({out, in}), dy({tokens, out});
  Pair y({tokens, out}), dx({tokens, in});
  Tensor grad = at::zeros({out, in});
  print({job, layer, tokens, out, in,
         [&] { kernels::linear(x.narrow, weight.narrow, std::nullopt, y.narrow); },
         [&] { kernels::linear(x.wide, weight.wide, std::nullopt, y.wide); },
         [&] { at::mm_out(y.wide, x.wide, weight.wide.t()); }});
  print({job, "dx", tokens, in, out, [&] { kernels::matmul(dy.narrow, weight.narrow, dx.narrow); },
         [&] { kernels::matmul(dy.wide, weight.wide, dx.wide); },
         [&] { at::mm_out(dx.wide, dy.wide, weight.wide); }});
  print({job, "dw", out, in, tokens, [&] { kernels::accumulate_weight_gradient(dy.narrow, x.narrow, grad); },
         [&] { kernels::accumulate_weight_gradient(dy.wide, x.wide, grad); },
         [&] { grad.addmm_(dy.wide.t(), x.wide); }});
}

// A GEMM inside attention, for one head.
void print_block(const char* product, cpu::Op op_a, cpu::Op op_b, int64_t m, int64_t n, int64_t k) {
  const auto shape = [](cpu::Op op, int64_t rows, int64_t columns) {
    return op == cpu::Op::none ? std::vector{rows, columns} : std::vector{columns, rows};
  };
  const Pair a(shape(op_a, m, k)), b(shape(op_b, k, n));
  Tensor c = at::empty({m, n});
  const auto ours = [&]<class T>(T, const Tensor& left, const Tensor& right) {
    cpu::gemm<T>(op_a, op_b, {m, n, k}, {cpu::in<T>(left), left.size(1)}, {cpu::in<T>(right), right.size(1)},
                 cpu::Result::written, {cpu::out<float>(c), n});
  };
  const auto op = [](cpu::Op which, const Tensor& x) { return which == cpu::Op::none ? x : x.t(); };
  print({"attention", product, m, n, k, [&] { ours(uint16_t{}, a.narrow, b.narrow); },
         [&] { ours(float{}, a.wide, b.wide); }, [&] { at::mm_out(c, op(op_a, a.wide), op(op_b, b.wide)); }});
}

}  // namespace

TEST_CASE("GFLOP/s of matrix products", "[.bench]") {
  using enum cpu::Op;
  at::set_num_threads(1);
  fmt::print("{}\n| product | m x n x k | bf16 | fp32 | LibTorch fp32 |\n|---|---|---:|---:|---:|\n",
             cpu::loops().isa);
  print_layer("bench", "qkv", 512, 512, 1536);
  print_layer("bench", "o", 512, 512, 512);
  print_layer("bench", "gate and up", 512, 512, 2816);
  print_layer("bench", "down", 512, 1408, 512);
  print_layer("bench", "head", 512, 512, 32000);
  print_layer("shakespeare", "qkv", 512, 192, 576);
  print_layer("shakespeare", "o", 512, 192, 192);
  print_layer("shakespeare", "gate and up", 512, 192, 1024);
  print_layer("shakespeare", "down", 512, 512, 192);
  print_layer("shakespeare", "head", 512, 192, 256);
  print_layer("small", "gate and up", 128, 64, 256);
  print_layer("few rows", "gate and up", 32, 512, 2816);
  print_block("q k^T", none, transpose, 128, 256, 64);
  print_block("p v", none, none, 128, 64, 256);
  print_block("dp^T q", transpose, none, 256, 64, 128);
}

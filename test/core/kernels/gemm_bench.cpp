// The speed of one core on the GEMMs of the shipped jobs, in bfloat16 and in float32, beside LibTorch's GEMM
// in the same type. Run by name: OMP_NUM_THREADS=1 taskset -c 0 build/test_core_kernels "[.bench]".
// PPTRAIN_ISA chooses our instruction set, MKL_ENABLE_INSTRUCTIONS=AVX2 the library's on Intel's processors.
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/timing.h"
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

// One GEMM in a type: ours and the library's.
struct Contest {
  Work ours, library;
};

struct Row {
  const char* job;
  const char* product;
  int64_t m, n, k;
  Contest bf16, f32;
};

// How many times as fast as the library's ours are, over all rows of a pass.
using Ratios = std::map<std::string, std::vector<double>>;

// The best time of many turns; the four GEMMs take turns, and change places, since the second of a type finds
// its operands in the caches. Returns the ratio in bfloat16 and in float32.
std::pair<double, double> print(const Row& row) {
  const double flops = 2.0 * static_cast<double>(row.m * row.n * row.k);
  const std::array<const Work*, 4> work{&row.bf16.ours, &row.bf16.library, &row.f32.ours, &row.f32.library};
  std::array<double, 4> best{1e9, 1e9, 1e9, 1e9};
  const int turns = static_cast<int>(std::clamp(5e9 / flops, 5.0, 500.0));
  for (int turn = 0; turn < turns; ++turn) {
    for (size_t place = 0; place < work.size(); ++place) {
      const size_t i = turn % 2 == 0 ? place : work.size() - 1 - place;
      best[i] = std::min(best[i], test::thread_seconds(*work[i]));
    }
  }
  fmt::print("| {} {} | {} x {} x {} |", row.job, row.product, row.m, row.n, row.k);
  for (const double seconds : best) fmt::print(" {:.0f} |", flops / seconds * 1e-9);
  fmt::print("\n");
  return {best[1] / best[0], best[3] / best[2]};
}

// Operands in float32 and in bfloat16.
struct Pair {
  Tensor wide, narrow;
  explicit Pair(at::IntArrayRef shape) : wide(at::randn(shape)), narrow(wide.to(at::kBFloat16)) {}
};

// A linear layer in -> out for this number of tokens: forward, gradient of x, gradient of the weight, which
// the library adds up in the operands' type.
void print_layer(const char* job, const char* layer, int64_t tokens, int64_t in, int64_t out,
                 Ratios& ratios) {
  const Pair x({tokens, in}), weight({out, in}), dy({tokens, out});
  Pair y({tokens, out}), dx({tokens, in}), dw({out, in});
  Tensor grad = at::zeros({out, in});
  const auto forward = [&](const Tensor& from, const Tensor& by, Tensor& to) {
    return Contest{[&] { kernels::linear(from, by, std::nullopt, to); },
                   [&] { at::mm_out(to, from, by.t()); }};
  };
  const auto input_gradient = [&](const Tensor& from, const Tensor& by, Tensor& to) {
    return Contest{[&] { kernels::matmul(from, by, to); }, [&] { at::mm_out(to, from, by); }};
  };
  const auto weight_gradient = [&](const Tensor& from, const Tensor& by, Tensor& to) {
    return Contest{[&] { kernels::accumulate_weight_gradient(from, by, grad); },
                   [&] { to.addmm_(from.t(), by); }};
  };
  const auto print_pass = [&](const char* pass, const char* product, const auto& contest, const Pair& from,
                              const Pair& by, Pair& to) {
    const int64_t m = to.wide.size(0), n = to.wide.size(1), k = from.wide.numel() / m;
    const auto [bf16, f32] = print({job, product, m, n, k, contest(from.narrow, by.narrow, to.narrow),
                                    contest(from.wide, by.wide, to.wide)});
    ratios[fmt::format("{} in bfloat16", pass)].push_back(bf16);
    ratios[fmt::format("{} in float32", pass)].push_back(f32);
  };
  print_pass("forward", layer, forward, x, weight, y);
  print_pass("dx", "dx", input_gradient, dy, weight, dx);
  print_pass("dw", "dw", weight_gradient, dy, x, dw);
}

// A GEMM inside attention, for one head.
void print_block(const char* product, cpu::Op op_a, cpu::Op op_b, int64_t m, int64_t n, int64_t k) {
  const auto shape = [](cpu::Op op, int64_t rows, int64_t columns) {
    return op == cpu::Op::none ? std::vector{rows, columns} : std::vector{columns, rows};
  };
  const Pair a(shape(op_a, m, k)), b(shape(op_b, k, n));
  Tensor c = at::empty({m, n}), narrow = c.to(at::kBFloat16);
  const auto ours = [&]<class T>(T, const Tensor& left, const Tensor& right) {
    cpu::gemm<T>(op_a, op_b, {m, n, k}, {cpu::in<T>(left), left.size(1)}, {cpu::in<T>(right), right.size(1)},
                 cpu::Result::written, {cpu::out<float>(c), n});
  };
  const auto op = [](cpu::Op which, const Tensor& x) { return which == cpu::Op::none ? x : x.t(); };
  print(
      {"attention",
       product,
       m,
       n,
       k,
       {[&] { ours(uint16_t{}, a.narrow, b.narrow); },
        [&] { at::mm_out(narrow, op(op_a, a.narrow), op(op_b, b.narrow)); }},
       {[&] { ours(float{}, a.wide, b.wide); }, [&] { at::mm_out(c, op(op_a, a.wide), op(op_b, b.wide)); }}});
}

}  // namespace

TEST_CASE("GFLOP/s of matrix products", "[.bench]") {
  using enum cpu::Op;
  at::set_num_threads(1);
  fmt::print(
      "{}\n| product | m x n x k | bf16 | LibTorch bf16 | fp32 | LibTorch fp32 |\n"
      "|---|---|---:|---:|---:|---:|\n",
      cpu::loops().isa);
  Ratios ratios;
  print_layer("bench", "qkv", 512, 512, 1536, ratios);
  print_layer("bench", "o", 512, 512, 512, ratios);
  print_layer("bench", "gate and up", 512, 512, 2816, ratios);
  print_layer("bench", "down", 512, 1408, 512, ratios);
  print_layer("bench", "head", 512, 512, 32000, ratios);
  print_layer("shakespeare", "qkv", 512, 192, 576, ratios);
  print_layer("shakespeare", "o", 512, 192, 192, ratios);
  print_layer("shakespeare", "gate and up", 512, 192, 1024, ratios);
  print_layer("shakespeare", "down", 512, 512, 192, ratios);
  print_layer("shakespeare", "head", 512, 192, 256, ratios);
  print_layer("small", "gate and up", 128, 64, 256, ratios);
  print_layer("few rows", "gate and up", 32, 512, 2816, ratios);
  print_block("q k^T", none, transpose, 128, 256, 64);
  print_block("p v", none, none, 128, 64, 256);
  print_block("dp^T q", transpose, none, 256, 64, 128);
  for (auto& [pass, of_rows] : ratios) {
    std::ranges::sort(of_rows);
    fmt::print("{}: {:.2f} times LibTorch's speed (median), {:.2f} at least\n", pass, median(of_rows),
               of_rows.front());
  }
}

// Our own GEMMs against float64: on each instruction set of this processor, for both types, in all transposes
// and at the edges of tiles and blocks. They give the same bits on any number of threads and in any part of a
// result.
#include "core/kernels/cpu/gemm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/amx.h"
#include "core/kernels/cpu/typed.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
namespace cpu = pptrain::kernels::cpu;
using cpu::Op;

namespace {

// op(stored) is [rows, columns]; the row stride of `stored` is larger than a row.
struct Operand {
  Op op;
  Tensor value, stored;

  Operand(Op given, int64_t rows, int64_t columns, at::ScalarType type)
      : op(given), value(random({rows, columns}, type)) {
    const Tensor dense = op == Op::none ? value : value.t();
    stored = random({dense.size(0), dense.size(1) + 5}, type);
    stored.narrow(1, 0, dense.size(1)).copy_(dense);
  }
  // The elements from row `row` and column `column` of op(stored) on.
  template <class T>
  cpu::Matrix<const T> from(int64_t row = 0, int64_t column = 0) const {
    const int64_t stride = stored.size(1);
    return {cpu::in<T>(stored) + (op == Op::none ? row * stride + column : column * stride + row), stride};
  }
};

struct Shape {
  int64_t m, n, k;
};

// Sizes within a tile; at the edges of the tiles of all instruction sets; of several tiles, blocks of rows
// and of inner indices; and with more inner indices than are packed at a time.
const std::vector<Shape> shapes = {{1, 1, 1},      {6, 16, 8},      {7, 17, 9},     {5, 8, 257},
                                   {14, 32, 16},   {13, 33, 7},     {12, 31, 300},  {160, 70, 64},
                                   {61, 530, 40},  {150, 90, 1030}, {20, 40, 4500}, {3, 2100, 300},
                                   {300, 48, 2049}};

template <class T>
void check_products(const cpu::TypedLoops<T>& loops, Op op_a, Op op_b, Shape s) {
  const auto type = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;
  const Operand a(op_a, s.m, s.k, type), b(op_b, s.k, s.n, type);
  const Tensor product = at::mm(a.value.to(at::kDouble), b.value.to(at::kDouble));
  const Tensor before = at::randn({s.m, s.n + 3});
  const auto inside = [&](const Tensor& x) { return x.narrow(1, 0, s.n).contiguous(); };
  const auto outside = [&](const Tensor& x) { return x.narrow(1, s.n, 3).contiguous(); };
  const auto run = [&](cpu::Result result, Tensor to) {
    cpu::packed_gemm<T>(loops.gemm, op_a, op_b, {s.m, s.n, s.k}, a.template from<T>(), b.template from<T>(),
                        result, {to.mutable_data_ptr<float>(), to.size(1)});
    return to;
  };
  at::set_num_threads(1);
  const Tensor unset = at::full_like(before, NAN), written = run(cpu::Result::written, unset.clone()),
               added = run(cpu::Result::added, before.clone());
  CHECK(relative_error(inside(written), product) < 2e-6);
  CHECK(relative_error(inside(added), product + inside(before)) < 2e-6);
  CHECK(same_bits(outside(written), outside(unset)));
  CHECK(same_bits(outside(added), outside(before)));

  const auto rounded = [&](float add) {
    Tensor to = at::empty({s.m, s.n}, type);
    cpu::packed_rounded_gemm<T>(
        loops, op_a, op_b, {s.m, s.n, s.k}, a.template from<T>(), b.template from<T>(),
        {cpu::out<T>(to), s.n}, [&](const cpu::Range& range, float* sums) {
          for (int64_t i = 0; i < range.rows; ++i) {
            for (int64_t j = 0; j < range.columns; ++j)
              sums[i * range.columns + j] += add * static_cast<float>(range.m + i - range.n - j);
          }
        });
    return to;
  };
  const Tensor plain = rounded(0);
  const Tensor places = at::arange(s.m).unsqueeze(1) - at::arange(s.n);
  CHECK(same_bits(plain, inside(written).to(type)));
  CHECK(same_bits(rounded(0.5F), (inside(written) + 0.5F * places).to(type)));

  for (const int threads : {2, 3}) {
    at::set_num_threads(threads);
    CHECK(same_bits(run(cpu::Result::added, before.clone()), added));
    CHECK(same_bits(rounded(0), plain));
  }
  at::set_num_threads(1);

  // Only some of the rows and columns.
  const int64_t row = s.m / 3, column = s.n / 2, rows = s.m - row, columns = s.n - column;
  Tensor part = at::empty({rows, columns});
  cpu::packed_gemm<T>(loops.gemm, op_a, op_b, {rows, columns, s.k}, a.template from<T>(row, 0),
                      b.template from<T>(0, column), cpu::Result::written,
                      {part.mutable_data_ptr<float>(), columns});
  CHECK(same_bits(part, inside(written).narrow(0, row, rows).narrow(1, column, columns).contiguous()));
}

}  // namespace

TEST_CASE("our own products are products, with bits that depend on the inner indices alone", "[kernels]") {
  at::manual_seed(test::seed(13));
  for (const cpu::Loops* table : cpu::available_loops()) {
    for (const Shape s : shapes) {
      for (const Op op_a : {Op::none, Op::transpose}) {
        for (const Op op_b : {Op::none, Op::transpose}) {
          CAPTURE(table->isa, s.m, s.n, s.k, static_cast<int>(op_a), static_cast<int>(op_b));
          check_products<float>(table->f32, op_a, op_b, s);
          check_products<uint16_t>(table->bf16, op_a, op_b, s);
        }
      }
    }
  }
}

TEST_CASE("processors that do not multiply bfloat16 have float32's bits, and with FMA those of each other",
          "[kernels]") {
  at::manual_seed(test::seed(14));
  const int64_t m = 50, n = 70, k = 700;
  const Tensor a = random({m, k}, at::kBFloat16), b = random({n, k}, at::kBFloat16),
               wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
  std::optional<Tensor> fused;
  for (const cpu::Loops* table : cpu::available_loops()) {
    CAPTURE(table->isa);
    Tensor narrow = at::empty({m, n}), wide = at::empty({m, n});
    const auto run = [&]<class T>(const cpu::TypedLoops<T>& loops, const Tensor& x, const Tensor& y,
                                  Tensor& to) {
      cpu::packed_gemm<T>(loops.gemm, Op::none, Op::transpose, {m, n, k}, {cpu::in<T>(x), k},
                          {cpu::in<T>(y), k}, cpu::Result::written, {cpu::out<float>(to), n});
    };
    run(table->f32, wide_a, wide_b, wide);
    run(table->bf16, a, b, narrow);
    if (table->bf16.gemm.inner == 1) CHECK(same_bits(narrow, wide));
    if (table == &cpu::baseline_table) continue;
    if (!fused) fused = wide;
    CHECK(same_bits(wide, *fused));
  }
}

TEST_CASE("the instruction set that a processor gets is its fastest for products of bfloat16", "[kernels]") {
  constexpr int64_t size = 256;
  const Tensor a = random({size, size}, at::kBFloat16), b = random({size, size}, at::kBFloat16);
  Tensor out = at::empty({size, size});
  const std::vector<const cpu::Loops*> tables = cpu::available_loops();
  std::vector<double> best(tables.size(), 1e9);  // s
  for (int turn = 0; turn < 20; ++turn) {
    for (size_t i = 0; i < tables.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      cpu::packed_gemm<uint16_t>(tables[i]->bf16.gemm, Op::none, Op::transpose, {size, size, size},
                                 {cpu::in<uint16_t>(a), size}, {cpu::in<uint16_t>(b), size},
                                 cpu::Result::written, {cpu::out<float>(out), size});
      best[i] =
          std::min(best[i], std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  }
  const size_t first = tables.front()->tiles ? 1 : 0;  // products with tiles are others
  for (size_t i = first; i < tables.size(); ++i) {
    CAPTURE(tables[first]->isa, tables[i]->isa, best);
    CHECK(best[first] < 1.15 * best[i]);
  }
}

TEST_CASE("PPTRAIN_ISA names an instruction set that the processor has", "[kernels]") {
  const std::vector<const cpu::Loops*> tables = cpu::available_loops();
  for (const cpu::Loops* table : tables) {
    CHECK(&cpu::choose_loops(table->isa) == table);
    CHECK(table->tiles == (std::string(table->isa) == "amx"));
  }
  CHECK(&cpu::choose_loops("baseline") == &cpu::baseline_table);
  CHECK(&cpu::choose_loops("") == tables.front());
  CHECK(tables.front()->tiles == cpu::amx::is_supported());
  CHECK_THROWS_AS(cpu::choose_loops("avx"), UsageError);
  CHECK_THROWS_WITH(cpu::choose_loops("AVX2"),
                    contains_text("PPTRAIN_ISA is \"AVX2\"") && contains_text("baseline"));
  const auto is_avx512 = [](const cpu::Loops* table) { return std::string(table->isa) == "avx512"; };
  if (std::ranges::none_of(tables, is_avx512)) CHECK_THROWS_AS(cpu::choose_loops("avx512"), UsageError);
  if (!cpu::amx::is_supported()) CHECK_THROWS_AS(cpu::choose_loops("amx"), UsageError);

  const char* const name = std::getenv("PPTRAIN_ISA");  // test/core/kernels/CMakeLists.txt sets it
  CHECK(&cpu::loops() == &cpu::choose_loops(name == nullptr ? "" : name));
}

// The GEMMs of a block and of the head: one shape at a time, and all GEMMs of a block in turns for a long
// time.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"
#include "core/nn/vocabulary.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

using at::Tensor;

// With train.fp8 the last two take the place of the first two.
enum class Pass { forward, input_gradient, weight_gradient, fp8_forward, fp8_input_gradient };
constexpr std::array kPasses = {Pass::forward, Pass::input_gradient, Pass::weight_gradient};
constexpr std::array kFp8Passes = {Pass::fp8_forward, Pass::fp8_input_gradient};

const char* kernel_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "linear";
    case Pass::input_gradient:
      return "matmul";
    case Pass::weight_gradient:
      return "accumulate_weight_gradient";
    case Pass::fp8_forward:
      return "fp8 linear";
    case Pass::fp8_input_gradient:
      return "fp8 matmul";
  }
  return "";
}

// A linear layer: y [rows, out] = x [rows, in] weight^T.
struct Layer {
  std::string name;
  int64_t in = 0, out = 0;
  double flops(int64_t rows) const { return 2.0 * static_cast<double>(rows * in) * static_cast<double>(out); }
};

std::vector<Layer> block_layers(const Sizes& sizes) {
  return {{"qkv", sizes.hidden, sizes.qkv()},
          {"o", sizes.heads * sizes.head_dim, sizes.hidden},
          {"gate_up", sizes.hidden, 2 * sizes.ffn},
          {"down", sizes.ffn, sizes.hidden}};
}

// E4M3 with a scale for each row.
struct Rounded {
  Tensor values, scales;

  Rounded(int64_t rows, int64_t cols, at::Device device)
      : values(at::empty({rows, cols}, at::TensorOptions().dtype(at::kFloat8_e4m3fn).device(device))),
        scales(at::empty({rows}, at::TensorOptions().dtype(at::kFloat).device(device))) {}
};

// The operands and results of a layer's GEMMs. Gradients are small, as in training.
struct Operands {
  Tensor x, weight, dy, y, dx, weight_grad;
  Rounded weight_rows, weight_columns;

  Operands(const Bench& bench, const Layer& layer, int64_t rows)
      : x(bench.random({rows, layer.in}, at::kBFloat16)),
        weight(bench.random({layer.out, layer.in}, at::kBFloat16, 0.02)),
        dy(bench.random({rows, layer.out}, at::kBFloat16, 1e-3)),
        y(at::empty_like(dy)),
        dx(at::empty_like(x)),
        weight_grad(bench.random({layer.out, layer.in}, at::kFloat, 1e-3)),
        weight_rows(layer.out, layer.in, bench.device()),
        weight_columns(layer.in, layer.out, bench.device()) {
    kernels::quantize_rows(weight, weight_rows.values, weight_rows.scales);
    kernels::quantize_columns(weight, weight_columns.values, weight_columns.scales);
  }

  double bytes() const {
    double sum = 0;
    for (const Tensor* tensor : {&x, &weight, &dy, &y, &dx, &weight_grad})
      sum += static_cast<double>(tensor->nbytes());
    return sum;
  }
};

// As nn::Linear does: weights are rounded once a step, the other operand each time.
void multiply_in_fp8(const Tensor& x, const Rounded& weight, Tensor& y) {
  Rounded rows(x.size(0), x.size(1), x.device());
  kernels::quantize_rows(x, rows.values, rows.scales);
  kernels::fp8_linear(rows.values, rows.scales, weight.values, weight.scales, std::nullopt, y);
}

// Calls them as the program does.
void multiply(Pass pass, Operands& of) {
  switch (pass) {
    case Pass::forward:
      return kernels::linear(of.x, of.weight, std::nullopt, of.y);
    case Pass::input_gradient:
      return kernels::matmul(of.dy, of.weight, of.dx);
    case Pass::weight_gradient:
      return kernels::accumulate_weight_gradient(of.dy, of.x, of.weight_grad);
    case Pass::fp8_forward:
      return multiply_in_fp8(of.x, of.weight_rows, of.y);
    case Pass::fp8_input_gradient:
      return multiply_in_fp8(of.dy, of.weight_columns, of.dx);
  }
}

void measure_one(Bench& bench, Rows& rows, const Layer& layer, int64_t count, std::span<const Pass> passes) {
  std::vector<Operands> sets;
  sets.emplace_back(bench, layer, count);
  while (sets.size() < bench.sets(sets.front().bytes())) sets.emplace_back(bench, layer, count);
  const auto set = [&](int64_t i) -> Operands& { return sets[static_cast<size_t>(i) % sets.size()]; };
  for (const Pass pass : passes) {
    const Json names{{"kind", "burst"}, {"name", layer.name}, {"kernel", kernel_of(pass)}, {"rows", count},
                     {"in", layer.in},  {"out", layer.out},   {"sets", sets.size()}};
    rows.add(names, [&](Json& row) {
      row["flops"] = layer.flops(count);
      const Timing timing = bench.measure([&](int64_t i) { multiply(pass, set(i)); });
      put(row, timing);
      row["flops_per_s"] = layer.flops(count) / timing.seconds;
    });
  }
}

struct Step {
  size_t layer = 0;
  Pass pass = Pass::forward;
};

// A block's GEMMs in the order of its passes: forward, then each layer's input gradient and weight gradient,
// from the last layer to the first.
std::vector<Step> block_steps(size_t layers) {
  std::vector<Step> steps;
  for (size_t i = 0; i < layers; ++i) steps.push_back({i, Pass::forward});
  for (size_t i = layers; i-- > 0;) {
    steps.push_back({i, Pass::input_gradient});
    steps.push_back({i, Pass::weight_gradient});
  }
  return steps;
}

double sum(const std::vector<double>& values, size_t first, size_t end) {
  double result = 0;
  for (size_t i = first; i < end; ++i) result += values[i];
  return result;
}

// Repeats the GEMMs of a block for `seconds`, so that the device's clock settles at its power limit. One row
// for all of them, with the rates of the first and the last tenth, and one for each GEMM.
void measure_sustained(Bench& bench, Rows& rows, int64_t count, double seconds) {
  const std::vector<Layer> layers = block_layers(bench.sizes());
  std::vector<Operands> operands;
  double bytes = 0;
  for (const Layer& layer : layers) bytes += operands.emplace_back(bench, layer, count).bytes();
  const std::vector<Step> steps = block_steps(layers.size());
  std::vector<double> times;  // of each GEMM of each pass over the block
  size_t passes = 0;
  double flops = 0;  // of one pass
  for (const Layer& layer : layers) flops += static_cast<double>(kPasses.size()) * layer.flops(count);
  const auto run = [&](size_t blocks) {
    return bench.intervals([&](pipeline::TimeMarks& marks) {
      marks.mark();
      for (size_t block = 0; block < blocks; ++block) {
        for (const Step& step : steps) {
          multiply(step.pass, operands[step.layer]);
          marks.mark();
        }
      }
    });
  };
  rows.add({{"kind", "sustained"}, {"name", "block"}, {"kernel", "all"}, {"rows", count}}, [&](Json& row) {
    run(2);
    const double estimate = sum(run(2), 0, 2 * steps.size()) / 2;
    passes = static_cast<size_t>(std::max(10.0, std::ceil(seconds / estimate)));
    times = run(passes);
    const double total = sum(times, 0, times.size());
    const size_t tenth = passes / 10 * steps.size();
    const double tenth_flops = static_cast<double>(passes / 10) * flops;
    row["flops"] = flops;
    row["seconds"] = total / static_cast<double>(passes);
    row["calls"] = passes;
    row["total_s"] = total;
    row["operand_bytes"] = bytes;
    row["flops_per_s"] = flops * static_cast<double>(passes) / total;
    row["first_tenth_flops_per_s"] = tenth_flops / sum(times, 0, tenth);
    row["last_tenth_flops_per_s"] = tenth_flops / sum(times, times.size() - tenth, times.size());
  });
  if (times.empty()) return;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Layer& layer = layers[steps[i].layer];
    rows.add(
        {{"kind", "sustained"}, {"name", layer.name}, {"kernel", kernel_of(steps[i].pass)}, {"rows", count}},
        [&](Json& row) {
          double total = 0;
          for (size_t pass = 0; pass < passes; ++pass) total += times[pass * steps.size() + i];
          row["flops"] = layer.flops(count);
          row["seconds"] = total / static_cast<double>(passes);
          row["calls"] = passes;
          row["flops_per_s"] = layer.flops(count) * static_cast<double>(passes) / total;
        });
  }
}

// Rows of one of the head's chunks of logits on a GPU.
int64_t head_rows(const Sizes& sizes, int64_t rows) {
  return nn::LinearCrossEntropy::rows_per_chunk(rows, sizes.vocab * 2,
                                                nn::LinearCrossEntropy::default_chunk_bytes(at::kCUDA));
}

}  // namespace

void measure_products(Bench& bench, Rows& rows) {
  const Sizes& sizes = bench.sizes();
  for (const int64_t count : sizes.rows)
    for (const Layer& layer : block_layers(sizes)) {
      measure_one(bench, rows, layer, count, kPasses);
      measure_one(bench, rows, layer, count, kFp8Passes);
    }
  measure_one(bench, rows, {"head", sizes.hidden, sizes.vocab}, head_rows(sizes, sizes.max_rows()), kPasses);
  bench.reset_memory();
  for (const int64_t count : sizes.rows) {
    const double share = count == sizes.max_rows() ? 1 : 0.5;
    measure_sustained(bench, rows, count, share * bench.sustained_seconds());
  }
}

}  // namespace pptrain::bench

// The GEMMs of a block and of the head, in bf16 and in forms of FP8: one shape at a time, and all GEMMs of a
// block in turns for a long time.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/kernels/e4m3.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"
#include "core/nn/vocabulary.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

using at::Tensor;

enum class Pass { forward, input_gradient, weight_gradient };
constexpr std::array kPasses = {Pass::forward, Pass::input_gradient, Pass::weight_gradient};

const char* name_of(Pass pass) {  // the kernel of the pass in bf16
  switch (pass) {
    case Pass::forward:
      return "linear";
    case Pass::input_gradient:
      return "matmul";
    case Pass::weight_gradient:
      return "accumulate_weight_gradient";
  }
  return "";
}

// The forms of FP8 by the numbers that share a scale. The last one: 1 x 128 numbers along the sum of
// activations and gradients, 128 x 128 of weights.
enum class Form { bf16, tensor, row, block };
constexpr std::array kForms = {Form::bf16, Form::tensor, Form::row, Form::block};

const char* name_of(Form form) {
  switch (form) {
    case Form::bf16:
      return "bf16";
    case Form::tensor:
      return "tensor";
    case Form::row:
      return "row";
    case Form::block:
      return "1x128";
  }
  return "";
}

// pptrain has no such GEMM: LibTorch multiplies, and not every device can.
bool is_trial(Form form, Pass pass) {
  return form == Form::row ? pass == Pass::weight_gradient : form != Form::bf16;
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

// The operands and results of a layer's GEMMs. Gradients are small, as in training.
struct Operands {
  Tensor x, weight, dy, y, dx, weight_grad;

  Operands(const Bench& bench, const Layer& layer, int64_t rows)
      : x(bench.random({rows, layer.in}, at::kBFloat16)),
        weight(bench.random({layer.out, layer.in}, at::kBFloat16, 0.02)),
        dy(bench.random({rows, layer.out}, at::kBFloat16, 1e-3)),
        y(at::empty_like(dy)),
        dx(at::empty_like(x)),
        weight_grad(bench.random({layer.out, layer.in}, at::kFloat, 1e-3)) {}

  double bytes() const {
    double sum = 0;
    for (const Tensor* tensor : {&x, &weight, &dy, &y, &dx, &weight_grad})
      sum += static_cast<double>(tensor->nbytes());
    return sum;
  }
};

// A matrix [rows, inner] in E4M3. scales: [1, 1], [rows, 1], [rows, inner / 128] column by column, or
// [rows / 128, inner / 128] row by row, as at::_scaled_mm takes them.
struct Rounded {
  Tensor values, scales;
};

// By our kernels. With `turned`, the columns of x as rows.
Rounded by_rows(const Tensor& x, bool turned) {
  const int64_t rows = x.size(turned ? 1 : 0), inner = x.size(turned ? 0 : 1);
  Rounded result{.values = at::empty({rows, inner}, x.options().dtype(at::kFloat8_e4m3fn)),
                 .scales = at::empty({rows}, x.options().dtype(at::kFloat))};
  (turned ? kernels::quantize_columns : kernels::quantize_rows)(x, result.values, result.scales);
  result.scales = result.scales.unsqueeze(1);
  return result;
}

// By ATen's kernels: a scale for each block of height x width numbers, rounded to bf16.
Rounded by_blocks(const Tensor& x, int64_t height, int64_t width) {
  constexpr double kLargest = std::numeric_limits<double>::infinity();
  const int64_t rows = x.size(0) / height, cols = x.size(1) / width;
  const Tensor blocks = x.view({rows, height, cols, width});
  const Tensor scales = at::linalg_vector_norm(blocks, kLargest, at::IntArrayRef({1, 3}), /*keepdim=*/true)
                            .div_(kernels::e4m3::largest);
  return {.values = blocks.div(scales).to(at::kFloat8_e4m3fn).view(x.sizes()),
          .scales = scales.view({rows, cols}).to(at::kFloat)};
}

Rounded rounded(Form form, const Tensor& x, bool turned, bool is_weight = false) {
  constexpr int64_t kBlock = 128;
  if (form == Form::row) return by_rows(x, turned);
  Rounded result;
  if (form == Form::tensor) {
    result = by_blocks(x, x.size(0), x.size(1));
  } else {
    result = by_blocks(x, is_weight || turned ? kBlock : 1, is_weight || !turned ? kBlock : 1);
  }
  if (turned) result = {.values = result.values.t().contiguous(), .scales = result.scales.t()};
  result.scales = is_weight ? result.scales.contiguous() : result.scales.t().contiguous().t();
  return result;
}

// The GEMM of one pass of a layer: in bf16, or a b^T of operands in E4M3.
class Gemm {
 public:
  // Rounds the weight: once a step, so it is not timed.
  Gemm(Form form, Pass pass, Operands& of) : form_(form), pass_(pass), of_(&of) {
    if (form != Form::bf16 && pass != Pass::weight_gradient)
      b_ = rounded(form, of.weight, /*turned=*/pass == Pass::input_gradient, /*is_weight=*/true);
  }

  // Rounds activations and gradients: in each pass.
  void quantise() {
    if (form_ == Form::bf16) return;
    const bool sums_tokens = pass_ == Pass::weight_gradient;
    a_ = rounded(form_, pass_ == Pass::forward ? of_->x : of_->dy, /*turned=*/sums_tokens);
    if (sums_tokens) b_ = rounded(form_, of_->x, /*turned=*/true);
  }

  void multiply() {
    if (form_ == Form::bf16) {
      multiply_in_bf16();
    } else if (pass_ == Pass::weight_gradient) {
      Tensor sums = at::empty_like(of_->weight_grad);
      scaled_mm(sums);
      of_->weight_grad.add_(sums);
    } else if (is_trial(form_, pass_)) {
      scaled_mm(result());
    } else {
      kernels::fp8_linear(a_.values, a_.scales.squeeze(1), b_.values, b_.scales.squeeze(1), std::nullopt,
                          result());
    }
  }

 private:
  void multiply_in_bf16() {
    switch (pass_) {
      case Pass::forward:
        return kernels::linear(of_->x, of_->weight, std::nullopt, of_->y);
      case Pass::input_gradient:
        return kernels::matmul(of_->dy, of_->weight, of_->dx);
      case Pass::weight_gradient:
        return kernels::accumulate_weight_gradient(of_->dy, of_->x, of_->weight_grad);
    }
  }

  void scaled_mm(Tensor& out) const {
    at::_scaled_mm_out(out, a_.values, b_.values.t(), a_.scales, b_.scales.t(), {}, {}, out.scalar_type(),
                       /*use_fast_accum=*/false);
  }

  Tensor& result() { return pass_ == Pass::forward ? of_->y : of_->dx; }

  Form form_;
  Pass pass_;
  Operands* of_;
  Rounded a_, b_;
};

Json names(const char* kind, const std::string& name, const char* kernel, Form form, int64_t rows,
           bool trial) {
  Json row{{"kind", kind}, {"name", name}, {"kernel", kernel}, {"form", name_of(form)}, {"rows", rows}};
  if (trial) row["trial"] = true;
  return row;
}

Json names(const char* kind, const Layer& layer, Pass pass, Form form, int64_t rows) {
  return names(kind, layer.name, name_of(pass), form, rows, is_trial(form, pass));
}

void measure_one(Bench& bench, Rows& rows, const Layer& layer, int64_t count, std::span<const Form> forms) {
  std::vector<Operands> sets;
  sets.emplace_back(bench, layer, count);
  while (sets.size() < bench.sets(sets.front().bytes())) sets.emplace_back(bench, layer, count);
  for (const Form form : forms) {
    for (const Pass pass : kPasses) {
      rows.add(names("burst", layer, pass, form, count), [&](Json& row) {
        std::vector<Gemm> gemms;
        for (Operands& of : sets) gemms.emplace_back(form, pass, of);
        row["in"] = layer.in;
        row["out"] = layer.out;
        row["sets"] = sets.size();
        row["flops"] = layer.flops(count);
        const Timing timing = bench.measure([&](int64_t i) {
          Gemm& gemm = gemms[static_cast<size_t>(i) % gemms.size()];
          gemm.quantise();
          gemm.multiply();
        });
        put(row, timing);
        row["flops_per_s"] = layer.flops(count) / timing.seconds;
      });
    }
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

// Of values[first], values[first + stride], ..., before `end`.
double sum(const std::vector<double>& values, size_t first, size_t end, size_t stride = 1) {
  double result = 0;
  for (size_t i = first; i < end; i += stride) result += values[i];
  return result;
}

// `seconds`: of all calls; `multiplying`: these without quantising.
void put_rates(Json& row, Form form, double flops, size_t calls, double seconds, double multiplying) {
  const auto count = static_cast<double>(calls);
  row["flops"] = flops;
  row["seconds"] = seconds / count;
  row["calls"] = calls;
  row["flops_per_s"] = flops * count / seconds;
  if (form != Form::bf16) row["gemm_flops_per_s"] = flops * count / multiplying;
}

// Repeats the GEMMs of a block for `seconds`, so that the device's clock settles at its power limit. One row
// for all of them, with the rates of the first and the last tenth, and one for each GEMM.
void measure_sustained(Bench& bench, Rows& rows, std::vector<Operands>& operands, int64_t count, Form form,
                       double seconds) {
  const std::vector<Layer> layers = block_layers(bench.sizes());
  const std::vector<Step> steps = block_steps(layers.size());
  const size_t stride = 2 * steps.size();
  std::vector<Gemm> gemms;
  std::vector<double> times;  // of each block's GEMMs: of its quantising, then without it
  size_t blocks = 0;
  double flops = 0, bytes = 0;  // of one block
  for (const Layer& layer : layers) flops += static_cast<double>(kPasses.size()) * layer.flops(count);
  for (const Operands& of : operands) bytes += of.bytes();
  const auto run = [&](size_t repeats) {
    return bench.intervals([&](pipeline::TimeMarks& marks) {
      marks.mark();
      for (size_t block = 0; block < repeats; ++block) {
        for (Gemm& gemm : gemms) {
          gemm.quantise();
          marks.mark();
          gemm.multiply();
          marks.mark();
        }
      }
    });
  };
  const Json all = names("sustained", "block", "all", form, count, /*trial=*/form != Form::bf16);
  rows.add(all, [&](Json& row) {
    for (const Step& step : steps) gemms.emplace_back(form, step.pass, operands[step.layer]);
    run(2);
    const double estimate = sum(run(2), 0, 2 * stride) / 2;
    blocks = static_cast<size_t>(std::max(10.0, std::ceil(seconds / estimate)));
    times = run(blocks);
    const size_t tenth = blocks / 10 * stride;
    const double tenth_flops = static_cast<double>(blocks / 10) * flops;
    put_rates(row, form, flops, blocks, sum(times, 0, times.size()), sum(times, 1, times.size(), 2));
    row["total_s"] = sum(times, 0, times.size());
    row["operand_bytes"] = bytes;
    row["first_tenth_flops_per_s"] = tenth_flops / sum(times, 0, tenth);
    row["last_tenth_flops_per_s"] = tenth_flops / sum(times, times.size() - tenth, times.size());
  });
  if (times.empty()) return;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Layer& layer = layers[steps[i].layer];
    rows.add(names("sustained", layer, steps[i].pass, form, count), [&](Json& row) {
      const double multiplying = sum(times, 2 * i + 1, times.size(), stride);
      put_rates(row, form, layer.flops(count), blocks, sum(times, 2 * i, times.size(), stride) + multiplying,
                multiplying);
    });
  }
}

// Rows of one of the head's chunks of logits on a GPU.
int64_t head_rows(const Sizes& sizes, int64_t rows) {
  return nn::LinearCrossEntropy::rows_per_chunk(rows, sizes.vocab * 2,
                                                nn::LinearCrossEntropy::default_chunk_bytes(at::kCUDA));
}

}  // namespace

// Sustained FP8 has half the time of bf16, and the fewer rows have half the time of the most.
void measure_products(Bench& bench, Rows& rows) {
  const Sizes& sizes = bench.sizes();
  for (const int64_t count : sizes.rows)
    for (const Layer& layer : block_layers(sizes)) measure_one(bench, rows, layer, count, kForms);
  measure_one(bench, rows, {"head", sizes.hidden, sizes.vocab}, head_rows(sizes, sizes.max_rows()),
              std::array{Form::bf16});
  bench.reset_memory();
  for (const int64_t count : sizes.rows) {
    std::vector<Operands> operands;
    for (const Layer& layer : block_layers(sizes)) operands.emplace_back(bench, layer, count);
    for (const Form form : kForms) {
      const double share = (count == sizes.max_rows() ? 1 : 0.5) * (form == Form::bf16 ? 1 : 0.5);
      measure_sustained(bench, rows, operands, count, form, share * bench.sustained_seconds());
    }
  }
}

}  // namespace pptrain::bench

#include "core/optim/muon.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/kernels.h"
#include "core/optim/update.h"

namespace pptrain::optim {

namespace {

constexpr int steps = 5;
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
constexpr double smallest_norm = 1e-7;

// x / ||x||, in place.
void normalise(at::Tensor& x) {
  const at::Tensor norm = at::linalg_vector_norm(x.view({-1}), 2, std::nullopt, false, at::kFloat);
  x.div_(norm.clamp_min(smallest_norm));
}

// out = beta z + alpha x y
void add_matmul(const at::Tensor& z, double beta, const at::Tensor& x, const at::Tensor& y, double alpha,
                at::Tensor& out) {
  if (x.is_cpu()) {
    kernels::cpu::add_matmul(z, beta, x, y, alpha, out);
  } else {
    at::addmm_out(out, z, x, y, beta, alpha);
  }
}

}  // namespace

at::Tensor orthogonalise(at::Tensor x) {
  const bool tall = x.size(0) > x.size(1);  // the GEMMs of the shorter side are smaller
  x = tall ? x.t().contiguous() : x.clone();
  normalise(x);
  at::Tensor gram = at::empty({x.size(0), x.size(0)}, x.options());
  at::Tensor polynomial = at::empty_like(gram), next = at::empty_like(x);
  for (int step = 0; step < steps; ++step) {
    kernels::linear(x, x, std::nullopt, gram);
    add_matmul(gram, b, gram, gram, c, polynomial);
    add_matmul(x, a, polynomial, x, 1, next);
    std::swap(x, next);
  }
  return tall ? x.t().contiguous() : x;
}

double orthogonalise_flops(int64_t rows, int64_t cols) {
  const auto shorter = static_cast<double>(std::min(rows, cols));
  const auto longer = static_cast<double>(std::max(rows, cols));
  return steps * (4 * shorter * shorter * longer + 2 * shorter * shorter * shorter);
}

// x as given, and two of its shape.
int64_t orthogonalise_bytes(int64_t rows, int64_t cols, int64_t element) {
  const int64_t shorter = std::min(rows, cols);
  return element * (3 * rows * cols + 2 * shorter * shorter);
}

namespace {

struct Part {
  const Run* run;
  const nn::Slice* slice;

  at::Tensor of(const at::Tensor& flat) const { return run->part(flat, *slice); }
};

std::vector<Part> parts_of(std::span<const Run> runs) {
  std::vector<Part> parts;
  for (const Run& run : runs) {
    for (const nn::Slice& slice : run.slices) parts.push_back({&run, &slice});
  }
  return parts;
}

void apply(const Part& part, const at::Tensor& direction, double learning_rate) {
  const Run& run = *part.run;
  const double lr = learning_rate * run.lr_scale;
  const auto longer = static_cast<double>(std::ranges::max(part.slice->spec.shape));
  at::Tensor master = part.of(run.now.master);
  std::optional<at::Tensor> compute;
  if (run.compute) compute = part.of(*run.compute);
  kernels::descend(master, direction, compute, /*decay=*/1 - lr * run.weight_decay,
                   /*step=*/lr * 0.2 * std::sqrt(longer));
}

// For matrices that lie whole on this rank: nothing is exchanged. Throws Error that names a part that is not
// the whole matrix.
MatrixExchange local_matrices(std::vector<MatrixPart> parts) {
  for (const MatrixPart& part : parts) {
    if (!part.shape.is_whole())
      throw Error(fmt::format("{} is cut over ranks: they need an exchange to make it whole", part.name));
  }
  return [parts = std::move(parts)](const at::TensorOptions& options, const MatrixOperation& operation) {
    for (size_t i = 0; i < parts.size(); ++i) {
      at::Tensor operand = at::empty({parts[i].shape.numel()}, options);
      operation.read(i, operand);
      operation.write(i, operation.transform(operand.view(parts[i].shape.global)).view({-1}));
    }
  };
}

class Muon final : public Update {
 public:
  Muon(double momentum, MakeMatrixExchange make_exchange, const at::TensorOptions& tensors)
      : momentum_(momentum), make_exchange_(std::move(make_exchange)), tensors_(tensors) {}

  std::vector<std::string> state_files() const override { return {"muon.momentum"}; }
  void prepare(const std::vector<const nn::Slice*>& slices) override;
  void step(std::span<Run> runs, double lr, double grad_scale, int64_t step) override;

 private:
  double momentum_;
  MakeMatrixExchange make_exchange_;
  at::TensorOptions tensors_;
  MatrixExchange exchange_;
};

void Muon::prepare(const std::vector<const nn::Slice*>& slices) {
  std::vector<MatrixPart> parts;
  for (const nn::Slice* slice : slices) parts.push_back({slice->spec.name, slice->shape});
  exchange_ = make_exchange_ ? make_exchange_(std::move(parts)) : local_matrices(std::move(parts));
}

void Muon::step(std::span<Run> runs, double lr, double grad_scale, int64_t /*step*/) {
  const auto mix = [&](const at::Tensor& average, const at::Tensor& grad, at::Tensor& next) {
    kernels::momentum(average, grad, next, momentum_, grad_scale);
  };
  for (Run& run : runs) mix(run.now.state[0], run.grad, run.now.state[0]);
  const std::vector<Part> parts = parts_of(runs);
  exchange_(tensors_, {.read =
                           [&](size_t i, at::Tensor& to) {
                             const Run& run = *parts[i].run;
                             mix(parts[i].of(run.now.state[0]), parts[i].of(run.grad), to);
                           },
                       .transform = orthogonalise,
                       .write = [&](size_t i, const at::Tensor& from) { apply(parts[i], from, lr); }});
}

}  // namespace

std::unique_ptr<Update> make_muon(const config::OptimizerSection& options,
                                  const MakeMatrixExchange& make_exchange, const at::TensorOptions& tensors) {
  return std::make_unique<Muon>(options.muon_momentum, make_exchange, tensors);
}

}  // namespace pptrain::optim

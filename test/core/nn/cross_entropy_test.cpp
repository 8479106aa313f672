#include "core/nn/vocabulary.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

#include "core/kernels/dry_run.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

TEST_CASE("LinearCrossEntropy: loss and gradients, whatever the chunks", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(31));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto chunk_bytes = GENERATE(1, 40000, 1 << 24);  // one row, some rows with a rest, all rows at a time
  const auto [scale, cap] = GENERATE(std::pair(1.0, 0.0), std::pair(0.25, 0.0), std::pair(1.5, 2.0));
  const int64_t rows = 150, hidden = 24, vocab = 123;
  nn::ParameterGroup store;
  nn::Weight& weight = store.add({{.name = "head.weight", .shape = {vocab, hidden}, .init_std = 0.5}});
  store.materialise(at::kCPU, type);
  store.initialise(2);
  const Tensor h = random({rows, hidden}, type);
  Tensor labels = at::randint(0, vocab, {rows}, at::kLong);
  labels.narrow(0, 40, 7).fill_(-100);
  const Tensor oh = leaf(h), ow = leaf(weight.compute);
  Tensor ologits = oh.mm(ow.t()) * scale;
  if (cap > 0) ologits = (ologits / cap).tanh() * cap;
  const Tensor oloss = at::nll_loss_nd(at::log_softmax(ologits, 1), labels, {}, at::Reduction::Sum, -100);
  oloss.backward();

  const c10::InferenceMode inference;
  nn::LinearCrossEntropy head(weight, vocab);
  head.set_chunk_bytes(chunk_bytes);
  head.scale_logits(scale, cap);
  Tensor dh = at::empty_like(h);
  const Tensor loss = head.forward_backward(h, labels, dh);
  CHECK(loss.scalar_type() == at::kDouble);
  CHECK(loss.dim() == 0);
  CHECK(relative_error(loss, oloss) < (type == at::kFloat ? 1e-6 : 1e-3));
  CHECK(same_bits(head.losses(h, labels).sum(at::kDouble), loss));
  CHECK(relative_error(dh, oh.grad()) < tolerance(type));
  CHECK(relative_error(weight.grad, ow.grad()) < tolerance(type));
  CHECK(relative_error(head.logits(h), ologits) < tolerance(type));
}

TEST_CASE("a cap on logits takes a second chunk of them, within the bytes of one chunk", "[nn]") {
  const c10::InferenceMode inference;
  const int64_t rows = 640, vocab = 1000, hidden = 8;
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
  const auto peak_of = [&](double scale, double cap) {
    kernels::DryRun run;
    nn::ParameterGroup store;
    nn::Weight& weight = store.add({{.name = "head.weight", .shape = {vocab, hidden}}});
    store.materialise(at::kMeta, at::kBFloat16);
    nn::LinearCrossEntropy head(weight, vocab);
    head.set_chunk_bytes(64 * vocab * 2);
    head.scale_logits(scale, cap);
    const Tensor h = at::empty({rows, hidden}, options), labels = at::empty({rows}, options.dtype(at::kLong));
    Tensor dh = at::empty_like(h);
    const int64_t before = run.current_bytes();
    run.reset_peak();
    head.forward_backward(h, labels, dh);
    return run.peak_bytes() - before;
  };
  CHECK(peak_of(0.1, 0) == peak_of(1, 0));
  CHECK(peak_of(1, 30) == peak_of(1, 0));
}

TEST_CASE("label smoothing is PyTorch's and the z term PaLM's, in training alone", "[nn]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(32));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto chunk_bytes = GENERATE(40000, 1 << 24);
  const auto terms = GENERATE(nn::LossTerms{.label_smoothing = 0.1}, nn::LossTerms{.label_smoothing = 0.75},
                              nn::LossTerms{.z = 0.02}, nn::LossTerms{.label_smoothing = 0.1, .z = 0.5});
  const int64_t rows = 90, hidden = 24, vocab = 123;
  nn::ParameterGroup store;
  nn::Weight& weight = store.add({{.name = "head.weight", .shape = {vocab, hidden}, .init_std = 0.5}});
  store.materialise(at::kCPU, type);
  store.initialise(2);
  const Tensor h = random({rows, hidden}, type);
  Tensor labels = at::randint(0, vocab, {rows}, at::kLong);
  labels.narrow(0, 40, 7).fill_(-100);
  const Tensor oh = leaf(h), ow = leaf(weight.compute);
  const Tensor ologits = oh.mm(ow.t()), valid = labels.ne(-100);
  const Tensor oloss =
      at::cross_entropy_loss(ologits, labels, {}, at::Reduction::Sum, -100, terms.label_smoothing) +
      terms.z * ologits.logsumexp(1).square().masked_select(valid).sum();
  oloss.backward();

  const c10::InferenceMode inference;
  nn::LinearCrossEntropy head(weight, vocab);
  head.set_chunk_bytes(chunk_bytes);
  const Tensor plain = head.losses(h, labels);
  head.add_to_loss(terms);
  CHECK(same_bits(head.losses(h, labels), plain));
  Tensor dh = at::empty_like(h);
  const Tensor loss = head.forward_backward(h, labels, dh);
  CHECK(relative_error(loss, oloss) < (type == at::kFloat ? 1e-6 : 1e-3));
  CHECK(relative_error(dh, oh.grad()) < tolerance(type));
  CHECK(relative_error(weight.grad, ow.grad()) < tolerance(type));
}

TEST_CASE("the losses of rows add up, and are 0 without a target", "[nn]") {
  const c10::InferenceMode inference;
  nn::ParameterGroup store;
  nn::Weight& weight = store.add({{.name = "head.weight", .shape = {50, 16}, .init_std = 0.5}});
  store.materialise(at::kCPU, at::kFloat);
  store.initialise(2);
  nn::LinearCrossEntropy head(weight, 50);
  head.set_chunk_bytes(2000);
  const Tensor h = random({40, 16}, at::kFloat);
  Tensor labels = at::randint(0, 50, {40}, at::kLong);
  labels.narrow(0, 10, 5).fill_(-100);
  const Tensor losses = head.losses(h, labels);
  Tensor dh = at::empty_like(h);
  CHECK(same_bits(losses.sum(at::kDouble), head.forward_backward(h, labels, dh)));
  CHECK(losses.narrow(0, 10, 5).abs().max().item<double>() == 0);
  CHECK(losses.narrow(0, 15, 25).min().item<double>() > 0);
}

TEST_CASE("a NaN in the hidden state is a NaN in the loss", "[nn]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const c10::InferenceMode inference;
  nn::ParameterGroup store;
  nn::Weight& weight = store.add({{.name = "head.weight", .shape = {50, 16}}});
  store.materialise(at::kCPU, type);
  store.initialise(2);
  nn::LinearCrossEntropy head(weight, 50);
  Tensor h = random({4, 16}, type);
  h[2][5] = std::nan("");
  Tensor dh = at::empty_like(h);
  CHECK(std::isnan(head.losses(h, at::ones({4}, at::kLong)).sum().item<double>()));
  CHECK(std::isnan(head.forward_backward(h, at::ones({4}, at::kLong), dh).item<double>()));
}

TEST_CASE("chunks are as few as fit, and of equal size in whole tiles", "[nn]") {
  const auto rows_of = [](int64_t rows, int64_t most) {
    return nn::LinearCrossEntropy::rows_per_chunk(rows, /*row_bytes=*/100, /*chunk_bytes=*/100 * most);
  };
  CHECK(rows_of(4096, 4096) == 4096);
  CHECK(rows_of(150, 4096) == 150);
  CHECK(rows_of(4097, 4096) == 2080);  // not 4,096 and 1
  CHECK(rows_of(16384, 4185) == 4096);
  CHECK(rows_of(1000, 999) == 512);
  CHECK(rows_of(150, 20) == 19);  // eight chunks of less than a tile
  CHECK(rows_of(5, 0) == 1);
  CHECK(rows_of(0, 10) == 1);
  for (int64_t rows = 1; rows < 400; ++rows) {
    for (const int64_t most : {1, 7, 31, 32, 33, 64, 100, 399}) {
      const int64_t each = rows_of(rows, most);
      const int64_t whole = most < 32 ? most : most / 32 * 32;
      CAPTURE(rows, most, each);
      CHECK(each <= most);
      // If not all rows fit into one chunk, there are no more chunks than with the largest chunk that fits.
      if (rows > most) CHECK((rows + each - 1) / each <= (rows + whole - 1) / whole);
    }
  }
}

// Layers with sharded weights against the same layers on one rank: GEMMs by rows and columns, embedding and
// head by slices of the vocabulary.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/nn/attention.h"
#include "core/nn/feed_forward.h"
#include "core/nn/latent_attention.h"
#include "core/nn/linear.h"
#include "core/nn/rope.h"
#include "core/nn/vocabulary.h"
#include "parallel/axes/tensor/tensor_group.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using Mode = nn::WeightGradQueue::Mode;

namespace {

constexpr int64_t kRows = 47, kIn = 60, kOut = 48;

void materialise(nn::ParameterGroup& group, at::ScalarType type) {
  group.materialise(at::kCPU, type);
  group.initialise(5);
  for (nn::Slice* slice : group.slices()) {
    if (slice->spec.role == nn::Role::bias) slice->master.fill_(0.25);
  }
  group.refresh_compute();
}

// Adds this rank's gradient slices to whole gradients.
void collect(nn::ParameterGroup& group, std::map<std::string, Tensor>& whole) {
  for (const nn::Slice* slice : group.slices()) {
    Tensor& sum = whole.try_emplace(slice->spec.name, at::zeros(slice->spec.shape)).first->second;
    Tensor box = sum;
    for (size_t d = 0; d < slice->shape.box.size(); ++d)
      box = box.narrow(static_cast<int64_t>(d), slice->shape.offset[d], slice->shape.box[d]);
    box.add_(slice->grad);
  }
}

struct Result {
  Tensor y, dx;
  std::map<std::string, Tensor> grads;
};

// Runs `body` with a group of `size` ranks and joins the ranks' results: y and dx along y_dim and dx_dim.
using Body = std::function<Result(std::shared_ptr<const nn::TensorGroup>)>;
Result on_ranks(int size, const Body& body, int64_t y_dim, int64_t dx_dim) {
  std::vector<Result> parts(static_cast<size_t>(size));
  comm::run_thread_ranks(size, [&](comm::Communicator& tp) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    parts[static_cast<size_t>(tp.rank())] = body(tensor::make_tensor_group(&tp));
  });
  std::vector<Tensor> y, dx;
  Result result;
  for (Result& part : parts) {
    y.push_back(part.y);
    dx.push_back(part.dx);
    for (const auto& [name, grad] : part.grads) {
      const auto [found, is_new] = result.grads.try_emplace(name, grad);
      if (!is_new) found->second = found->second + grad;
    }
  }
  result.y = test::cat(y, y_dim);
  result.dx = test::cat(dx, dx_dim);
  return result;
}

void check(const Result& actual, const Result& expected, double limit) {
  CHECK(relative_error(actual.y, expected.y) < limit);
  CHECK(relative_error(actual.dx, expected.dx) < limit);
  REQUIRE(actual.grads.size() == expected.grads.size());
  for (const auto& [name, grad] : expected.grads) {
    INFO(name);
    CHECK(relative_error(actual.grads.at(name), grad) < limit);
  }
}

Tensor own_rows(const Tensor& whole, const nn::TensorShard& cut) {
  const int64_t rows = whole.size(0);
  return whole.narrow(0, cut.begin(rows, cut.rank), cut.count(rows)).contiguous();
}

Tensor own_columns(const Tensor& whole, const nn::TensorShard& cut) {
  const int64_t columns = whole.size(1);
  return whole.narrow(1, cut.begin(columns, cut.rank), cut.count(columns)).contiguous();
}

}  // namespace

TEST_CASE("ColumnLinear and RowLinear: values and gradients of the whole layer") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(8));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto mode = GENERATE(Mode::immediate, Mode::deferred);
  const int size = GENERATE(2, 3, 4);
  const Tensor x = random({kRows, kIn}, type), dy = random({kRows, kOut}, type);
  const Body column = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::ColumnLinear layer(group, kIn, {{"a", kOut}}, true, 0.3, tp);
    materialise(group, type);
    nn::WeightGradQueue queue(mode);
    Result r;
    r.y = layer.forward(own_rows(x, tp->cut()), kRows)[0];
    r.dx = layer.backward(own_rows(x, tp->cut()), {own_columns(dy, tp->cut())}, queue);
    queue.run();
    collect(group, r.grads);
    return r;
  };
  const Body row = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::RowLinear layer(group, kIn, {"a", kOut}, true, 0.3, tp);
    materialise(group, type);
    nn::WeightGradQueue queue(mode);
    Result r;
    r.y = layer.forward(own_columns(x, tp->cut()));
    r.dx = layer.backward(own_columns(x, tp->cut()), own_rows(dy, tp->cut()), queue);
    queue.run();
    collect(group, r.grads);
    return r;
  };
  const double limit = type == at::kFloat ? 1e-6 : 2e-2;
  const Result column_alone = on_ranks(1, column, 1, 0), row_alone = on_ranks(1, row, 0, 1);
  check(on_ranks(size, column, 1, 0), column_alone, limit);
  check(on_ranks(size, row, 0, 1), row_alone, limit);
}

TEST_CASE("LatentAttention: values and gradients of the whole layer") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(11));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto mode = GENERATE(Mode::immediate, Mode::deferred);
  const int64_t rows = 42, hidden = 40;
  const nn::LatentAttentionConfig config{.hidden = hidden,
                                         .heads = 4,
                                         .q_rank = GENERATE(0, 16),
                                         .kv_rank = 12,
                                         .nope_dim = 8,
                                         .rope_dim = 4,
                                         .v_dim = 6,
                                         .bias = true,
                                         .init_std = 0.2,
                                         .o_init_std = 0.2};
  const Tensor x = random({rows, hidden}, type), dy = random({rows, hidden}, type);
  const nn::TokenInfo tokens{.positions = at::arange(rows, at::kInt),
                             .segments = tokens::make_segments({0, 30, 42}, at::kCPU),
                             .ropes = {{nn::make_rope_table({.dim = config.rope_dim}, rows, at::kCPU)}}};
  const Body body = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::LatentAttention layer(group, "a", config, attention::make_local_attention(), tp);
    materialise(group, type);
    nn::WeightGradQueue queue(mode);
    nn::LatentAttention::Saved saved;
    Result r;
    r.y = layer.forward(own_rows(x, tp->cut()), tokens, saved);
    r.dx = layer.backward_input(saved, own_rows(dy, tp->cut()), tokens, queue);
    queue.run();
    collect(group, r.grads);
    return r;
  };
  const Result alone = on_ranks(1, body, 0, 0);
  for (const int size : {2, 4}) {
    INFO(size << " ranks");
    check(on_ranks(size, body, 0, 0), alone, type == at::kFloat ? 4e-6 : 4e-2);
  }
  if (type == at::kFloat) CHECK_THROWS_AS(on_ranks(3, body, 0, 0), Error);
}

namespace {

nn::TokenInfo some_tokens(int64_t rotary_dim) {
  return {.positions = at::arange(kRows, at::kInt),
          .segments = tokens::make_segments({0, 20, kRows}, at::kCPU),
          .ropes = {{nn::make_rope_table({.dim = rotary_dim}, kRows, at::kCPU)}}};
}

}  // namespace

TEST_CASE("Mlp: values and gradients of the whole layer") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(11));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int size = GENERATE(2, 3);
  const Tensor x = random({kRows, kIn}, type), dy = random({kRows, kIn}, type);
  const Body body = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::Mlp layer(group, "mlp", kIn, 96, nn::Activation::gelu_tanh, /*gated=*/false, true, 0.05, 0.05, tp);
    materialise(group, type);
    nn::WeightGradQueue queue(Mode::immediate);
    const auto saved = layer.activate(own_rows(x, tp->cut()), some_tokens(8));
    Result r;
    r.y = layer.project(*saved);
    r.dx = layer.backward_input(*saved, own_rows(dy, tp->cut()), some_tokens(8), queue);
    collect(group, r.grads);
    return r;
  };
  check(on_ranks(size, body, 0, 0), on_ranks(1, body, 0, 0), type == at::kFloat ? 2e-6 : 2e-2);
}

TEST_CASE("Attention: values and gradients of the whole layer, with norms of heads that are turned in part") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(12));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int size = GENERATE(2, 4);  // 4: each key-value head is on two ranks
  const nn::AttentionConfig config{.hidden = kIn,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .qkv_bias = true,
                                   .qk_norm = nn::QkNorm::head,
                                   .qk_norm_kind = nn::NormKind::rms_plus_one,
                                   .rotary_dim = 8};
  const Tensor x = random({kRows, kIn}, type), dy = random({kRows, kIn}, type);
  const Body body = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::Attention layer(group, "attn", config, attention::make_local_attention(), tp);
    materialise(group, type);
    nn::WeightGradQueue queue(Mode::immediate);
    nn::Attention::Saved saved;
    Result r;
    r.y = layer.forward(own_rows(x, tp->cut()), some_tokens(8), saved);
    r.dx = layer.backward_input(saved, own_rows(dy, tp->cut()), some_tokens(8), queue);
    collect(group, r.grads);
    return r;
  };
  check(on_ranks(size, body, 0, 0), on_ranks(1, body, 0, 0), type == at::kFloat ? 5e-6 : 3e-2);
}

TEST_CASE("a norm over all heads is refused where ranks share them out") {
  nn::ParameterGroup group;
  const nn::AttentionConfig config{
      .hidden = 8, .heads = 4, .kv_heads = 2, .head_dim = 4, .qk_norm = nn::QkNorm::whole};
  const auto tp = std::make_shared<nn::TensorGroup>(nn::TensorShard{.rank = 0, .size = 2});
  CHECK_THROWS_WITH(nn::Attention(group, "attn", config, attention::make_local_attention(), tp),
                    contains_text("several tensor-parallel ranks"));
}

TEST_CASE("Embedding by parts of the vocabulary: the bits of the whole one") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(9));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int size = GENERATE(2, 3, 4);
  const bool positions = GENERATE(false, true);
  const int64_t vocab = 31;
  const Tensor places = at::arange(kRows, at::kInt).flip(0);
  const Tensor tokens = at::randint(0, vocab, {kRows}, at::kLong), dy = random({kRows, kIn}, type);
  const Body body = [&](std::shared_ptr<const nn::TensorGroup> tp) {
    nn::ParameterGroup group;
    nn::Embedding layer(
        group, "embed",
        {.vocab = vocab, .dim = kIn, .init_std = 1, .scale = 3, .positions = positions ? kRows : 0}, tp);
    materialise(group, type);
    Result r{.y = layer.forward(tokens, places), .dx = at::zeros({1}), .grads = {}};
    layer.backward_weight(tokens, places, own_rows(dy, tp->cut()));
    collect(group, r.grads);
    return r;
  };
  const Result actual = on_ranks(size, body, 0, 0), expected = on_ranks(1, body, 0, 0);
  CHECK(same_bits(actual.y, expected.y));
  CHECK(actual.grads.size() == (positions ? 2U : 1U));
  for (const auto& [name, grad] : expected.grads) CHECK(same_bits(actual.grads.at(name), grad));
}

TEST_CASE("LinearCrossEntropy by parts of the vocabulary: one loss on every rank, whatever the chunks") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(10));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int size = GENERATE(2, 3, 4);
  const double cap = GENERATE(0.0, 3.0);
  const auto terms = GENERATE(nn::LossTerms{}, nn::LossTerms{.label_smoothing = 0.2}, nn::LossTerms{.z = 0.1},
                              nn::LossTerms{.label_smoothing = 0.2, .z = 0.1});
  const int64_t vocab = 61;
  const Tensor h = random({kRows, kIn}, type);
  Tensor labels = at::randint(0, vocab, {kRows}, at::kLong);
  labels.narrow(0, 20, 9).fill_(-100);
  const auto body = [&](int64_t chunk_bytes) -> Body {
    return [&, chunk_bytes](std::shared_ptr<const nn::TensorGroup> tp) {
      nn::ParameterGroup group;
      nn::Weight& weight = group.add({tp->cut().cut(
          {.name = "head.weight", .shape = {vocab, kIn}, .role = nn::Role::head, .init_std = 0.5}, 0)});
      materialise(group, type);
      nn::LinearCrossEntropy head(weight, vocab, tp);
      head.scale_logits(0.5, cap);
      head.set_chunk_bytes(chunk_bytes);
      head.add_to_loss(terms);
      const Tensor own = own_rows(h, tp->cut());
      Result r{.y = {}, .dx = at::empty_like(own), .grads = {}};
      const Tensor alone = head.losses(own, labels).sum(at::kDouble);
      r.y = head.forward_backward(own, labels, r.dx).unsqueeze(0);
      if (same_bits(r.y[0], alone) != (terms == nn::LossTerms()))
        throw Error("the loss depends on the gradient");
      const Tensor logits = head.logits(h);
      r.grads["logits"] = tp->cut().rank == 0 ? logits.to(at::kFloat) : at::zeros_like(logits, at::kFloat);
      collect(group, r.grads);
      return r;
    };
  };
  const Result expected = on_ranks(1, body(1 << 20), 0, 0);
  for (const int64_t chunk_bytes : {1, 1500, 1 << 20}) {
    INFO(size << " ranks, chunks of " << chunk_bytes);
    Result actual = on_ranks(size, body(chunk_bytes), 0, 0);
    for (int r = 1; r < size; ++r) CHECK(same_bits(actual.y[r], actual.y[0]));
    actual.y = actual.y.narrow(0, 0, 1);
    check(actual, expected, type == at::kFloat ? 2e-6 : 2e-2);
  }
}

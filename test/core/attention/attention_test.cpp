// Attention of whole documents, against LibTorch's autograd in float64 on an explicit softmax.
#include "core/attention/attention.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "test/core/attention/attention_oracle.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using attention::Gradients;
using attention::Saved;

namespace {

tokens::Segments documents_of(const std::vector<int32_t>& starts) {
  return tokens::make_segments(starts, at::kCPU);
}

attention::AttentionCall call_of(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const tokens::Segments& documents) {
  return {.q = q, .k = k, .v = v, .documents = documents};
}

}  // namespace

TEST_CASE("attend: values and gradients, each document by itself", "[attention]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(4));
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  // Equal lengths: one block of rows, and several with a rest. Also unequal lengths.
  const auto segments =
      documents_of(GENERATE(std::vector<int32_t>{0, 1}, std::vector<int32_t>{0, 33, 66},
                            std::vector<int32_t>{0, 300, 600}, std::vector<int32_t>{0, 40, 41, 341, 350}));
  const auto [heads, kv_heads, head_dim] =
      GENERATE(std::tuple{4, 4, 16}, std::tuple{6, 2, 20}, std::tuple{3, 1, 64});
  const Tensor fused = random({segments.tokens(), heads + 2 * kv_heads, head_dim}, type);
  const Tensor q = fused.narrow(1, 0, heads), k = fused.narrow(1, heads, kv_heads),
               v = fused.narrow(1, heads + kv_heads, kv_heads);
  const Tensor dout = random(q.sizes(), type);
  const Tensor oq = leaf(q), ok = leaf(k), ov = leaf(v);
  const Tensor oout = masked_attention(oq, ok, ov, segments);
  oout.backward(dout.to(at::kDouble));
  const double noise = tolerance(type) * dout.to(at::kDouble).norm().item<double>();

  const c10::InferenceMode inference;
  Saved saved;
  const Tensor out = attention::attend(call_of(q, k, v, segments), saved);
  CHECK(out.is_contiguous());
  CHECK(out.sizes() == q.sizes());
  CHECK(relative_error(out, oout) < tolerance(type));
  const Gradients grads = attention::attend_backward(dout, saved);
  CHECK(norm_of(grads.dq.to(at::kDouble) - oq.grad()) < noise);
  CHECK(norm_of(grads.dk.to(at::kDouble) - ok.grad()) < noise);
  CHECK(relative_error(grads.dv, ov.grad()) < tolerance(type));
}

TEST_CASE("a document's attention has the same bits alone and among others", "[attention]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(8));
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto segments = documents_of({0, 7, 207, 240});
  const Tensor q = random({240, 4, 16}, type), k = random({240, 2, 16}, type), v = random({240, 2, 16}, type),
               dout = random({240, 4, 16}, type);
  Saved saved;
  const Tensor out = attention::attend(call_of(q, k, v, segments), saved);
  const Gradients grads = attention::attend_backward(dout, saved);
  for (int64_t i = 0; i < segments.documents(); ++i) {
    const auto own = [&](const Tensor& x) { return x.narrow(0, segments.first(i), segments.length(i)); };
    const auto one = tokens::equal_segments(1, segments.length(i), at::kCPU);
    Saved own_saved;
    CHECK(same_bits(attention::attend(call_of(own(q), own(k), own(v), one), own_saved), own(out)));
    const Gradients own_grads = attention::attend_backward(own(dout), own_saved);
    CHECK(same_bits(own_grads.dq, own(grads.dq)));
    CHECK(same_bits(own_grads.dk, own(grads.dk)));
    CHECK(same_bits(own_grads.dv, own(grads.dv)));
  }
}

TEST_CASE("attention does not look ahead, passes NaN on, and ignores the number of threads", "[attention]") {
  at::manual_seed(test::seed(6));
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto segments = documents_of({0, 200, 230});
  const Tensor q = random({230, 4, 16}, type), dout = random({230, 4, 16}, type);
  Tensor k = random({230, 2, 16}, type), v = random({230, 2, 16}, type);
  const attention::AttentionCall call = call_of(q, k, v, segments);
  Saved saved;
  const Tensor out = attention::attend(call, saved);
  const Gradients grads = attention::attend_backward(dout, saved);

  at::set_num_threads(2);
  Saved other;
  CHECK(same_bits(attention::attend(call, other), out));
  const Gradients again = attention::attend_backward(dout, other);
  CHECK(same_bits(again.dq, grads.dq));
  CHECK(same_bits(again.dk, grads.dk));
  CHECK(same_bits(again.dv, grads.dv));
  at::set_num_threads(1);
  k.narrow(0, 150, 50).fill_(30);
  v.narrow(0, 150, 50).fill_(100);
  const Tensor later = attention::attend(call, saved);
  CHECK(same_bits(later.narrow(0, 0, 150), out.narrow(0, 0, 150)));
  CHECK(same_bits(later.narrow(0, 200, 30), out.narrow(0, 200, 30)));  // the next document
  k[150].fill_(std::nan(""));
  const Tensor broken = attention::attend(call, saved);
  CHECK(broken.narrow(0, 150, 50).isnan().all().item<bool>());
  CHECK(same_bits(broken.narrow(0, 200, 30), out.narrow(0, 200, 30)));
}

TEST_CASE("on the meta device local attention gives shapes alone", "[attention]") {
  const c10::InferenceMode inference;
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto kind = at::TensorOptions().dtype(type).device(at::kMeta);
  const tokens::Segments documents = tokens::make_segments({0, 8, 20}, at::kMeta);
  const Tensor q = at::empty({20, 4, 8}, kind), k = at::empty({20, 2, 8}, kind),
               v = at::empty({20, 2, 8}, kind);
  const auto local = attention::make_local_attention();
  Saved saved;
  const Tensor out = local->forward(call_of(q, k, v, documents), saved);
  CHECK(out.is_meta());
  CHECK(out.sizes() == q.sizes());
  CHECK(out.scalar_type() == type);
  const Tensor logsumexp = saved.logsumexp;
  CHECK(logsumexp.is_meta());
  CHECK(logsumexp.sizes() == at::IntArrayRef({4, 20}));
  CHECK(logsumexp.scalar_type() == at::kFloat);
  const auto grads = local->backward(out, std::move(saved));
  CHECK(grads.dq.sizes() == q.sizes());
  CHECK(grads.dk.sizes() == k.sizes());
  CHECK(grads.dv.sizes() == v.sizes());
  CHECK(grads.dv.is_meta());
}

TEST_CASE("empty_gradients of our kernel: three views of one tensor", "[attention]") {
  const Tensor q = at::randn({5, 6, 8});
  const Tensor k = at::randn({5, 2, 8});
  const Gradients grads = attention::empty_gradients(attention::BackEnd::cpu, {.q = q, .k = k, .v = k});
  grads.fused.copy_(at::arange(5 * 10 * 8).view({5, 10, 8}));
  CHECK(grads.dq.sizes() == q.sizes());
  CHECK(grads.dk.equal(grads.fused.narrow(1, 6, 2)));
  CHECK(grads.dv.equal(grads.fused.narrow(1, 8, 2)));
  CHECK(grads.dv.is_alias_of(grads.dq));
}

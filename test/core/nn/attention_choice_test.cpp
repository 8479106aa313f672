#include "core/nn/attention_choice.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <string>
#include <vector>

#include "core/nn/causal_attention.h"
#include "test/support/catch.h"

using namespace pptrain;
using nn::AttentionBackEnd;
using nn::AttentionCall;

namespace {

// Two documents of 2,048 tokens on a Hopper GPU, as Llama 3 8B has them.
AttentionCall hopper() {
  return {.capability = 90,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .documents = 2,
          .longest = 2048,
          .tokens = 4096,
          .equal = true,
          .deterministic = true,
          .has_cudnn = true};
}

}  // namespace

TEST_CASE("choose_attention: a table", "[nn]") {
  struct Row {
    std::string what;
    void (*change)(AttentionCall&);
    AttentionBackEnd expected;
  };
  const auto none = [](AttentionCall&) {};
  const std::vector<Row> rows{
      {"Hopper, equal documents", none, AttentionBackEnd::cudnn},
      {"not deterministic", [](AttentionCall& c) { c.deterministic = false; }, AttentionBackEnd::cudnn},
      {"float32", [](AttentionCall& c) { c.type = at::kFloat; }, AttentionBackEnd::efficient},
      {"float32 on Ampere", [](AttentionCall& c) { c.type = at::kFloat, c.capability = 80; },
       AttentionBackEnd::efficient},
      {"Ampere", [](AttentionCall& c) { c.capability = 80; }, AttentionBackEnd::flash},
      {"Ada", [](AttentionCall& c) { c.capability = 89; }, AttentionBackEnd::flash},
      {"Blackwell", [](AttentionCall& c) { c.capability = 100; }, AttentionBackEnd::cudnn},
      {"Blackwell of workstations", [](AttentionCall& c) { c.capability = 120; }, AttentionBackEnd::flash},
      {"no frontend", [](AttentionCall& c) { c.has_cudnn = false; }, AttentionBackEnd::flash},
      {"wide heads", [](AttentionCall& c) { c.head_dim = 256; }, AttentionBackEnd::flash},
      {"odd heads", [](AttentionCall& c) { c.head_dim = 100; }, AttentionBackEnd::flash},
      {"short", [](AttentionCall& c) { c.longest = 32, c.documents = 128; }, AttentionBackEnd::flash},
      // 4 heads of 16,384^2 pairs are 2 GiB of score gradients.
      {"long", [](AttentionCall& c) { c.longest = c.tokens = 16384, c.documents = 1; },
       AttentionBackEnd::cudnn},
      {"longer", [](AttentionCall& c) { c.longest = c.tokens = 16448, c.documents = 1; },
       AttentionBackEnd::flash},
      {"longer, Blackwell",
       [](AttentionCall& c) { c.longest = c.tokens = 16448, c.documents = 1, c.capability = 100; },
       AttentionBackEnd::cudnn},
      {"longer, not deterministic",
       [](AttentionCall& c) { c.longest = c.tokens = 16448, c.documents = 1, c.deterministic = false; },
       AttentionBackEnd::cudnn},
      // Plans for 64 and 128 documents of up to 2,048 tokens.
      {"ragged", [](AttentionCall& c) { c.equal = false, c.documents = 64; }, AttentionBackEnd::cudnn},
      {"many ragged", [](AttentionCall& c) { c.equal = false, c.documents = 65; }, AttentionBackEnd::flash},
      {"ragged, not deterministic",
       [](AttentionCall& c) { c.equal = false, c.documents = 9, c.deterministic = false; },
       AttentionBackEnd::cudnn},
      {"ragged, beyond int32",
       [](AttentionCall& c) { c.equal = false, c.tokens = 400000, c.deterministic = false; },
       AttentionBackEnd::flash},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    AttentionCall call = hopper();
    row.change(call);
    CHECK(nn::choose_attention(call) == row.expected);
  }
}

TEST_CASE("the score gradients of a deterministic backward pass, in bytes", "[nn]") {
  AttentionCall call = hopper();
  CHECK(nn::score_gradient_bytes(call) == int64_t{2} * 32 * 2048 * 2048 * 2);
  call.longest = 2112;  // whole tiles of 64 queries, not of 128 keys
  CHECK(nn::score_gradient_bytes(call) == int64_t{2} * 32 * 2112 * 2176 * 2);
  call.longest = 8192;  // 32 heads of two documents in parts of 4 heads
  CHECK(nn::cudnn_head_parts(call) == 8);
  CHECK(nn::score_gradient_bytes(call) == int64_t{2} * 4 * 8192 * 8192 * 2);
  call.capability = 100;
  CHECK(nn::cudnn_head_parts(call) == 1);
  CHECK(nn::score_gradient_bytes(call) == 0);
}

TEST_CASE("empty_fused_gradients: three views of one tensor", "[nn]") {
  const at::Tensor q = at::randn({5, 6, 8});
  const nn::AttentionGradients grads = nn::empty_fused_gradients(q, 2);
  grads.fused.copy_(at::arange(5 * 10 * 8).view({5, 10, 8}));
  CHECK(grads.dq.sizes() == q.sizes());
  CHECK(grads.dk.equal(grads.fused.narrow(1, 6, 2)));
  CHECK(grads.dv.equal(grads.fused.narrow(1, 8, 2)));
  CHECK(grads.dv.is_alias_of(grads.dq));
}

#include "core/nn/attention_choice.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <string>
#include <vector>

#include "core/kernels/dry_run.h"
#include "core/nn/block_attention.h"
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

// As flash_api.cpp of LibTorch allocates: softmax_d, dq_accum, dk_expanded and dv_expanded.
TEST_CASE("what FlashAttention-2's backward pass takes, in bytes", "[nn]") {
  AttentionCall call = hopper();
  call.documents = 1;
  call.longest = call.tokens = 8192;
  // 132 multiprocessors over 32 heads: 5 sums of dq.
  CHECK(nn::backward_scratch(AttentionBackEnd::flash, call, 132) == 1048576 + 671088640 + 134217728);
  call.deterministic = false;
  CHECK(nn::backward_scratch(AttentionBackEnd::flash, call, 132) == 1048576 + 134217728 + 134217728);
  CHECK(nn::forward_scratch(AttentionBackEnd::flash, call) == 0);
  // Three documents of 300, 700 and 0 more tokens than fill a list of 1,000, by 4 heads of 72 (96 with
  // filling).
  const AttentionCall ragged{.capability = 80,
                             .heads = 4,
                             .kv_heads = 4,
                             .head_dim = 72,
                             .documents = 3,
                             .longest = 700,
                             .tokens = 1000,
                             .equal = false};
  CHECK(nn::backward_scratch(AttentionBackEnd::flash, ragged, 108) == 1384 * 4 * 4 + 9 * 1384 * 4 * 96 * 4);
  AttentionCall wide = hopper();
  wide.head_dim = 160;  // 192 with filling; two documents of 2,000 tokens, 2,048 with filling
  wide.kv_heads = 32;
  wide.longest = 2000, wide.tokens = 4000;
  CHECK(nn::backward_scratch(AttentionBackEnd::flash, wide, 132) ==
        int64_t{4096} * 32 * 4 + int64_t{3} * 4096 * 32 * 192 * 4);
}

// As cuDNN's frontend sizes its workspace: softmax_sum, and dP or dQ_accum.
TEST_CASE("what cuDNN's backward pass takes, in bytes", "[nn]") {
  AttentionCall call = hopper();
  CHECK(nn::backward_scratch(AttentionBackEnd::cudnn, call, 132) == 524288 + 536870912 + 67108864);
  call.deterministic = false;
  CHECK(nn::backward_scratch(AttentionBackEnd::cudnn, call, 132) == 524288 + 67108864 + 67108864);
  call.kv_heads = 32;
  CHECK(nn::backward_scratch(AttentionBackEnd::cudnn, call, 132) == 524288 + 67108864);
  // 9 ragged documents of 4,000 tokens: 4,096 by the plan; gradients of every head's keys in float32.
  call = hopper();
  call.documents = 9;
  call.tokens = 4000;
  call.equal = call.deterministic = false;
  CHECK(nn::backward_scratch(AttentionBackEnd::cudnn, call, 132) == 524288 + 3 * 67108864);
}

TEST_CASE("what memory-efficient attention takes, in bytes", "[nn]") {
  AttentionCall call = hopper();
  call.type = at::kFloat;
  const int64_t all_heads = int64_t{4096} * 32 * 128 * 4, row_sums = int64_t{4096} * 32 * 4;
  CHECK(nn::forward_scratch(AttentionBackEnd::efficient, call) == 2 * all_heads);
  // k, v, dk and dv of every head, out * dout; the key-value heads' own gradients come later.
  CHECK(nn::backward_scratch(AttentionBackEnd::efficient, call, 132) ==
        5 * all_heads + 2 * row_sums - 2 * all_heads / 4);
  call.kv_heads = 32;
  CHECK(nn::forward_scratch(AttentionBackEnd::efficient, call) == 0);
  CHECK(nn::backward_scratch(AttentionBackEnd::efficient, call, 132) == all_heads + 2 * row_sums);
}

TEST_CASE("a dry run for a GPU counts its library's memory, and has its gradients", "[nn]") {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const tokens::Segments segments = tokens::equal_segments(2, 256, at::kMeta);
  struct Row {
    kernels::GpuKind gpu;
    bool deterministic;
    int64_t scratch;  // of 512 tokens by 4 heads of 64, key-value heads too
    bool fused;
  };
  const Row row = GENERATE(Row{{}, true, 0, true},                                     // a CPU
                           Row{{90, 132}, true, 8192 + 2 * 4 * 256 * 256 * 2, true},   // cuDNN
                           Row{{90, 132}, false, 8192 + 512 * 4 * 64 * 4, true},       // the same
                           Row{{80, 108}, true, 8192 + 14 * 512 * 4 * 64 * 4, false},  // FlashAttention-2
                           Row{{80, 108}, false, 8192 + 512 * 4 * 64 * 4, false});
  kernels::DryRun run(row.gpu);
  const at::Tensor q = at::empty({512, 4, 64}, meta), k = at::empty({512, 4, 64}, meta);
  nn::AttentionStatistics statistics;
  const at::Tensor out =
      nn::causal_attention(q, k, k, segments, statistics, {.deterministic = row.deterministic});
  CHECK(run.peak_bytes() == run.current_bytes());
  const int64_t before = run.current_bytes();
  run.reset_peak();
  const nn::AttentionGradients grads = nn::causal_attention_backward(out, q, k, k, segments, out, statistics);
  CHECK(run.current_bytes() - before == 3 * 512 * 4 * 64 * 2);
  CHECK(run.peak_bytes() - run.current_bytes() == row.scratch);
  CHECK(grads.fused.defined() == row.fused);
  CHECK(grads.dv.sizes() == k.sizes());
}

TEST_CASE("a block of a ring counts FlashAttention-2's memory and its own gradients", "[nn]") {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  kernels::DryRun run({.capability = 90, .multiprocessors = 132});
  const at::Tensor q = at::empty({300, 4, 64}, meta), k = at::empty({200, 2, 64}, meta);
  nn::PartialAttention seen = nn::no_attention(q);
  const std::vector<tokens::AttentionBlock> blocks{
      {.query = 0, .rows = 100, .key = 0, .keys = 100, .causal = true},
      {.query = 100, .rows = 200, .key = 0, .keys = 200, .causal = false}};
  run.reset_peak();
  nn::add_attention(q, k, k, blocks, seen);
  // Of 200 rows: the output in bfloat16 and float32; four rows of statistics.
  CHECK(run.peak_bytes() - run.current_bytes() == 200 * 4 * (64 * 6 + 4 * 4));
  nn::AttentionGradients grads{.dq = at::empty(q.sizes(), meta.dtype(at::kFloat)),
                               .dk = at::empty(k.sizes(), meta.dtype(at::kFloat)),
                               .dv = at::empty(k.sizes(), meta.dtype(at::kFloat))};
  run.reset_peak();
  nn::add_attention_backward(q, q, k, k, q, seen.logsumexp, blocks, grads);
  const int64_t flash = 4 * 256 * 4 + int64_t{33} * 256 * 4 * 64 * 4 + 2 * 200 * 4 * 64 * 2;
  const int64_t own = (200 * 4 + 2 * 200 * 2) * 64 * 2 + 200 * 4 * 4;
  CHECK(run.peak_bytes() - run.current_bytes() == flash + own);
}

TEST_CASE("heads that no library of a GPU takes", "[nn]") {
  for (const int64_t head_dim : {8, 64, 80, 128, 192, 256})
    CHECK(nn::why_no_attention(at::kBFloat16, head_dim).empty());
  for (const int64_t head_dim : {4, 12, 100, 264, 512}) {
    const std::string why = nn::why_no_attention(at::kBFloat16, head_dim);
    CHECK(why.find("multiples of 8 up to 256") != std::string::npos);
  }
  CHECK(nn::why_no_attention(at::kFloat, 12).empty());
  CHECK(nn::why_no_attention(at::kFloat, 512).empty());
  CHECK(nn::why_no_attention(at::kFloat, 6).find("multiples of 4") != std::string::npos);
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

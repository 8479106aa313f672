#include "core/attention/gpu.h"

#include <string>
#include <vector>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/kernels/dry_run.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using attention::BackEnd;
using attention::CallShape;

namespace {

// Two documents of 2,048 tokens on a Hopper GPU, with Llama 3 8B's attention.
CallShape hopper() {
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

TEST_CASE("choose_on_gpu: a table", "[attention]") {
  struct Row {
    std::string what;
    void (*change)(CallShape&);
    BackEnd expected;
  };
  const auto none = [](CallShape&) {};
  const std::vector<Row> rows{
      {"Hopper, equal documents", none, BackEnd::cudnn},
      {"not deterministic", [](CallShape& c) { c.deterministic = false; }, BackEnd::cudnn},
      {"float32", [](CallShape& c) { c.type = at::kFloat; }, BackEnd::efficient},
      {"float32 on Ampere", [](CallShape& c) { c.type = at::kFloat, c.capability = 80; }, BackEnd::efficient},
      {"Ampere", [](CallShape& c) { c.capability = 80; }, BackEnd::flash},
      {"Ada", [](CallShape& c) { c.capability = 89; }, BackEnd::flash},
      {"Blackwell", [](CallShape& c) { c.capability = 100; }, BackEnd::cudnn},
      {"Blackwell of workstations", [](CallShape& c) { c.capability = 120; }, BackEnd::flash},
      {"no frontend", [](CallShape& c) { c.has_cudnn = false; }, BackEnd::flash},
      {"wide heads", [](CallShape& c) { c.head_dim = 256; }, BackEnd::flash},
      {"odd heads", [](CallShape& c) { c.head_dim = 100; }, BackEnd::flash},
      {"short", [](CallShape& c) { c.longest = 32, c.documents = 128; }, BackEnd::flash},
      // 4 heads of 16,384^2 pairs are 2 GiB of score gradients.
      {"long", [](CallShape& c) { c.longest = c.tokens = 16384, c.documents = 1; }, BackEnd::cudnn},
      {"longer", [](CallShape& c) { c.longest = c.tokens = 16448, c.documents = 1; }, BackEnd::flash},
      {"longer, Blackwell",
       [](CallShape& c) { c.longest = c.tokens = 16448, c.documents = 1, c.capability = 100; },
       BackEnd::cudnn},
      {"longer, not deterministic",
       [](CallShape& c) { c.longest = c.tokens = 16448, c.documents = 1, c.deterministic = false; },
       BackEnd::cudnn},
      // Plans for 64 and 128 documents of up to 2,048 tokens.
      {"ragged", [](CallShape& c) { c.equal = false, c.documents = 64; }, BackEnd::cudnn},
      {"many ragged", [](CallShape& c) { c.equal = false, c.documents = 65; }, BackEnd::flash},
      {"ragged, not deterministic",
       [](CallShape& c) { c.equal = false, c.documents = 9, c.deterministic = false; }, BackEnd::cudnn},
      {"ragged, beyond int32",
       [](CallShape& c) { c.equal = false, c.tokens = 400000, c.deterministic = false; }, BackEnd::flash},
      {"a scale", [](CallShape& c) { c.asks.scale = true; }, BackEnd::flash},
      {"a window", [](CallShape& c) { c.asks.window = true; }, BackEnd::flash},
      {"a softcap", [](CallShape& c) { c.asks.softcap = true; }, BackEnd::composed_blocks},
      {"a window and sinks", [](CallShape& c) { c.asks = {.window = true, .sinks = true}; },
       BackEnd::flash_blocks},
      {"a softcap and a window", [](CallShape& c) { c.asks = {.softcap = true, .window = true}; },
       BackEnd::composed_blocks},
      {"float32, a scale", [](CallShape& c) { c.type = at::kFloat, c.asks.scale = true; },
       BackEnd::efficient},
      {"float32, a window", [](CallShape& c) { c.type = at::kFloat, c.asks.window = true; },
       BackEnd::composed_blocks},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    CallShape call = hopper();
    row.change(call);
    CHECK(attention::choose_on_gpu(call) == row.expected);
  }
}

TEST_CASE("the score gradients of a deterministic backward pass, in bytes", "[attention]") {
  CallShape call = hopper();
  CHECK(attention::score_gradient_bytes(call) == int64_t{2} * 32 * 2048 * 2048 * 2);
  call.longest = 2112;  // whole tiles of 64 queries, not of 128 keys
  CHECK(attention::score_gradient_bytes(call) == int64_t{2} * 32 * 2112 * 2176 * 2);
  call.longest = 8192;  // 32 heads of two documents, 4 heads at a time
  CHECK(attention::cudnn_backward_parts(call) == 8);
  CHECK(attention::score_gradient_bytes(call) == int64_t{2} * 4 * 8192 * 8192 * 2);
  call.capability = 100;
  CHECK(attention::cudnn_backward_parts(call) == 1);
  CHECK(attention::score_gradient_bytes(call) == 0);
}

// The allocations of LibTorch's flash_api.cpp: softmax_d, dq_accum, dk_expanded and dv_expanded.
TEST_CASE("what FlashAttention-2's backward pass takes, in bytes", "[attention]") {
  CallShape call = hopper();
  call.documents = 1;
  call.longest = call.tokens = 8192;
  // 132 multiprocessors over 32 heads: 5 sums of dq.
  CHECK(attention::backward_scratch(BackEnd::flash, call, 132) == 1048576 + 671088640 + 134217728);
  call.deterministic = false;
  CHECK(attention::backward_scratch(BackEnd::flash, call, 132) == 1048576 + 134217728 + 134217728);
  CHECK(attention::forward_scratch(BackEnd::flash, call) == 0);
  // Three documents that fill a list of 1,000 tokens, padded by 128 each, with 4 heads of 72 (96 with
  // padding).
  const CallShape ragged{.capability = 80,
                         .heads = 4,
                         .kv_heads = 4,
                         .head_dim = 72,
                         .documents = 3,
                         .longest = 700,
                         .tokens = 1000,
                         .equal = false};
  CHECK(attention::backward_scratch(BackEnd::flash, ragged, 108) == 1384 * 4 * 4 + 9 * 1384 * 4 * 96 * 4);
  CallShape wide = hopper();
  wide.head_dim = 160;  // 192 with padding; two documents of 2,000 tokens, 2,048 with padding
  wide.kv_heads = 32;
  wide.longest = 2000, wide.tokens = 4000;
  CHECK(attention::backward_scratch(BackEnd::flash, wide, 132) ==
        int64_t{4096} * 32 * 4 + int64_t{3} * 4096 * 32 * 192 * 4);
}

// The workspace of cuDNN's frontend: softmax_sum, and dP or dQ_accum.
TEST_CASE("what cuDNN's backward pass takes, in bytes", "[attention]") {
  CallShape call = hopper();
  CHECK(attention::backward_scratch(BackEnd::cudnn, call, 132) == 524288 + 536870912 + 67108864);
  call.deterministic = false;
  CHECK(attention::backward_scratch(BackEnd::cudnn, call, 132) == 524288 + 67108864 + 67108864);
  call.kv_heads = 32;
  CHECK(attention::backward_scratch(BackEnd::cudnn, call, 132) == 524288 + 67108864);
  // 9 ragged documents of 4,000 tokens: 4,096 in the plan; gradients of every head's keys in float32. Their
  // sums have a fixed order in any mode, so score gradients are written: 16 documents in the plan, in 4
  // parts.
  call = hopper();
  call.documents = 9;
  call.tokens = 4000;
  call.equal = false;
  const int64_t scores = int64_t{16} * 8 * 2048 * 2048 * 2;
  for (const bool deterministic : {true, false}) {
    call.deterministic = deterministic;
    CHECK(attention::cudnn_backward_parts(call) == 4);
    CHECK(attention::backward_scratch(BackEnd::cudnn, call, 132) == 524288 / 4 + 2 * 67108864 + scores);
  }
}

TEST_CASE("what memory-efficient attention takes, in bytes", "[attention]") {
  CallShape call = hopper();
  call.type = at::kFloat;
  const int64_t all_heads = int64_t{4096} * 32 * 128 * 4, row_sums = int64_t{4096} * 32 * 4;
  CHECK(attention::forward_scratch(BackEnd::efficient, call) == 2 * all_heads);
  // k, v, dk and dv of every head, out * dout; the key-value heads' own gradients come later.
  CHECK(attention::backward_scratch(BackEnd::efficient, call, 132) ==
        5 * all_heads + 2 * row_sums - 2 * all_heads / 4);
  call.kv_heads = 32;
  CHECK(attention::forward_scratch(BackEnd::efficient, call) == 0);
  CHECK(attention::backward_scratch(BackEnd::efficient, call, 132) == all_heads + 2 * row_sums);
}

TEST_CASE("a dry run for a GPU counts its library's memory, and has its gradients", "[attention]") {
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
  attention::Saved saved;
  const at::Tensor out = attention::attend(
      {.q = q, .k = k, .v = k, .documents = segments, .deterministic = row.deterministic}, saved);
  CHECK(run.peak_bytes() == run.current_bytes());
  const int64_t before = run.current_bytes();
  run.reset_peak();
  const attention::Gradients grads = attention::attend_backward(out, saved);
  CHECK(run.current_bytes() - before == 3 * 512 * 4 * 64 * 2);
  CHECK(run.peak_bytes() - run.current_bytes() == row.scratch);
  CHECK(grads.fused.defined() == row.fused);
  CHECK(grads.dv.sizes() == k.sizes());
}

TEST_CASE("a block of a ring counts FlashAttention-2's memory and its own gradients", "[attention]") {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  kernels::DryRun run({.capability = 90, .multiprocessors = 132});
  const at::Tensor q = at::empty({300, 4, 64}, meta), k = at::empty({200, 2, 64}, meta);
  const attention::AttentionCall call{.q = q, .k = k, .v = k};
  attention::PartialAttention seen = attention::no_attention(call);
  const std::vector<tokens::AttentionBlock> blocks{
      {.query = 0, .rows = 100, .key = 0, .keys = 100, .causal = true},
      {.query = 100, .rows = 200, .key = 0, .keys = 200, .causal = false}};
  run.reset_peak();
  attention::add_attention(call, blocks, seen);
  // 200 rows: the output in bfloat16 and float32; four rows of statistics.
  CHECK(run.peak_bytes() - run.current_bytes() == 200 * 4 * (64 * 6 + 4 * 4));
  attention::Gradients grads{.dq = at::empty(q.sizes(), meta.dtype(at::kFloat)),
                             .dk = at::empty(k.sizes(), meta.dtype(at::kFloat)),
                             .dv = at::empty(k.sizes(), meta.dtype(at::kFloat))};
  run.reset_peak();
  attention::add_attention_backward(
      q, {.call = call, .out = q, .logsumexp = seen.logsumexp, .back_end = seen.back_end}, blocks, grads);
  const int64_t flash = 4 * 256 * 4 + int64_t{33} * 256 * 4 * 64 * 4 + 2 * 200 * 4 * 64 * 2;
  const int64_t own = (200 * 4 + 2 * 200 * 2) * 64 * 2 + 200 * 4 * 4;
  CHECK(run.peak_bytes() - run.current_bytes() == flash + own);
}

TEST_CASE("heads that no library of a GPU takes", "[attention]") {
  for (const int64_t head_dim : {8, 64, 80, 128, 192, 256})
    CHECK(attention::why_no_attention(at::kBFloat16, head_dim).empty());
  for (const int64_t head_dim : {4, 12, 100, 264, 512}) {
    const std::string why = attention::why_no_attention(at::kBFloat16, head_dim);
    CHECK(why.find("multiples of 8 up to 256") != std::string::npos);
  }
  CHECK(attention::why_no_attention(at::kFloat, 12).empty());
  CHECK(attention::why_no_attention(at::kFloat, 512).empty());
  CHECK(attention::why_no_attention(at::kFloat, 6).find("multiples of 4") != std::string::npos);
}

// Back ends compute the calls that they declare and refuse all others.
#include <c10/core/InferenceMode.h>

#include <memory>
#include <string>
#include <vector>

#include "core/attention/attention.h"
#include "core/attention/blocks.h"
#include "core/attention/cache.h"
#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using attention::AttentionCall;
using attention::BackEnd;
using attention::Takes;

namespace {

// A member of a call that back ends declare, a value for it, and the words of its refusal.
struct Wish {
  bool Takes::*declared;
  void (*set)(AttentionCall&);
  std::string words;
};

const std::vector<Wish> wishes{
    {&Takes::split,
     [](AttentionCall& c) {
       c.split = std::make_shared<const tokens::ContextSplit>(
           tokens::split_rows(tokens::ContextOrder::contiguous, 1, 8, 2, 0));
     },
     "a token list that 2 context-parallel ranks share"},
    {&Takes::scale, [](AttentionCall& c) { c.scale = 0.5; }, "a scale of its own (0.5)"},
    {&Takes::softcap, [](AttentionCall& c) { c.softcap = 50; }, "a softcap of scores (50)"},
    {&Takes::window, [](AttentionCall& c) { c.window = 4096; }, "a sliding window (4096 tokens)"},
    {&Takes::sinks, [](AttentionCall& c) { c.sinks = at::ones({4}, c.q.options().dtype(at::kFloat)); },
     "attention sinks"},
};

AttentionCall random_call(const std::vector<int32_t>& starts, at::ScalarType type) {
  const int64_t tokens = starts.back();
  return {.q = random({tokens, 4, 8}, type),
          .k = random({tokens, 2, 8}, type),
          .v = random({tokens, 2, 8}, type),
          .documents = tokens::make_segments(starts, at::kCPU)};
}

AttentionCall meta_call(at::ScalarType type) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(type);
  const Tensor q = at::empty({256, 4, 64}, options), k = at::empty({256, 2, 64}, options);
  return {.q = q, .k = k, .v = k, .documents = tokens::equal_segments(1, 256, at::kMeta)};
}

// One block: all queries and keys of one document.
std::vector<tokens::AttentionBlock> whole_block(int64_t tokens) {
  return {{.query = 0, .rows = tokens, .key = 0, .keys = tokens, .causal = true}};
}

}  // namespace

TEST_CASE("a back end takes what it declares, and refuses the rest by its name", "[attention]") {
  const BackEnd back_end =
      GENERATE(BackEnd::cpu, BackEnd::cpu_blocks, BackEnd::cpu_decode, BackEnd::cudnn, BackEnd::flash,
               BackEnd::flash_blocks, BackEnd::efficient, BackEnd::library_decode, BackEnd::composed_blocks,
               BackEnd::ring, BackEnd::ulysses, BackEnd::sequence_slices);
  const AttentionCall call = random_call({0, 8}, at::kFloat);
  CHECK_NOTHROW(attention::require_taken(back_end, call));
  for (const Wish& wish : wishes) {
    INFO(attention::name_of(back_end) << ": " << wish.words);
    AttentionCall changed = call;
    wish.set(changed);
    if (attention::what_takes(back_end).*wish.declared) {
      CHECK_NOTHROW(attention::require_taken(back_end, changed));
    } else {
      const std::string name(attention::name_of(back_end));
      CHECK_THROWS_WITH(attention::require_taken(back_end, changed),
                        "attention: " + name + " does not take " + wish.words);
    }
  }
}

TEST_CASE("a refusal names all that the back end does not take", "[attention]") {
  AttentionCall call = random_call({0, 8}, at::kFloat);
  call.softcap = 30;
  call.window = 128;
  CHECK_THROWS_WITH(attention::require_taken(BackEnd::cudnn, call),
                    "attention: cuDNN does not take a softcap of scores (30), a sliding window (128 tokens)");
}

TEST_CASE("whole documents, blocks and cached keys refuse before they compute", "[attention]") {
  const c10::InferenceMode inference;
  const Wish& wish = wishes.front();
  REQUIRE(wish.declared == &Takes::split);  // the CPU's kernels take all others
  AttentionCall call = random_call({0, 8}, at::kFloat);
  wish.set(call);
  const auto refuses = contains_text("does not take " + wish.words);
  attention::Saved saved;
  CHECK_THROWS_WITH(attention::attend(call, saved), refuses);
  CHECK_FALSE(saved.out.defined());
  attention::PartialAttention seen = attention::no_attention(call);
  CHECK_THROWS_WITH(attention::add_attention(call, whole_block(8), seen), refuses);
  seen.back_end = BackEnd::composed_blocks;
  CHECK_THROWS_WITH(attention::add_attention(call, whole_block(8), seen), refuses);

  attention::KeyValueCache cache({.layers = 1, .kv_heads = 2, .head_dim = 8}, std::vector<int64_t>{8});
  const std::vector<attention::CachedDocument> documents{{.slot = 0, .past = 0}};
  for (const BackEnd back_end : {BackEnd::cpu_decode, BackEnd::library_decode})
    CHECK_THROWS_WITH(attention::attend_to_cache(back_end, call, cache, 0, documents), refuses);
  attention::CachedAttention cached(attention::make_local_attention());
  const attention::CachedAttention::Use use(cached, cache, documents);
  CHECK_THROWS_WITH(cached.forward(call, saved), refuses);
}

TEST_CASE("a dry run for a GPU takes a back end that takes the call", "[attention]") {
  struct Row {
    kernels::GpuKind gpu;
    at::ScalarType type;
    BackEnd whole, blocks;
  };
  const Row row = GENERATE(Row{{90, 132}, at::kBFloat16, BackEnd::cudnn, BackEnd::flash_blocks},
                           Row{{80, 108}, at::kBFloat16, BackEnd::flash, BackEnd::flash_blocks},
                           Row{{80, 108}, at::kFloat, BackEnd::efficient, BackEnd::composed_blocks},
                           Row{{}, at::kBFloat16, BackEnd::cpu, BackEnd::cpu_blocks});
  const kernels::DryRun run(row.gpu);
  const AttentionCall call = meta_call(row.type);
  attention::Saved saved;
  attention::attend(call, saved);
  CHECK(saved.back_end == row.whole);
  CHECK(attention::no_attention(call).back_end == row.blocks);
  for (const Wish& wish : wishes) {
    INFO(wish.words);
    AttentionCall changed = call;
    wish.set(changed);
    attention::PartialAttention seen = attention::no_attention(changed);
    if (wish.declared == &Takes::split) {
      CHECK_THROWS_WITH(attention::attend(changed, saved), contains_text(wish.words));
      CHECK_THROWS_WITH(attention::add_attention(changed, whole_block(256), seen), contains_text(wish.words));
      continue;
    }
    const Tensor out = attention::attend(changed, saved);
    CHECK(attention::what_takes(saved.back_end).*wish.declared);
    CHECK(out.scalar_type() == row.type);
    const attention::Gradients grads = attention::attend_backward(out, saved);
    CHECK(grads.dk.sizes() == changed.k.sizes());
    CHECK(grads.dk.scalar_type() == row.type);
    CHECK(grads.dsinks.defined() == (wish.declared == &Takes::sinks));
    CHECK(attention::what_takes(seen.back_end).*wish.declared);
    CHECK_NOTHROW(attention::add_attention(changed, whole_block(256), seen));
  }
}

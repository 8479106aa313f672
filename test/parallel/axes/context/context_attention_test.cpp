// Attention over token lists that are divided over ranks, against autograd in float64 over the whole list.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/attention/attention.h"
#include "core/base/error.h"
#include "core/data/tokens/context_split.h"
#include "core/kernels/dry_run.h"
#include "parallel/axes/context/context_attention.h"
#include "parallel/comm/dry/dry_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/attention/attention_oracle.h"
#include "test/core/data/tokens/random_split.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using tokens::ContextOrder;
using tokens::ContextSplit;
using tokens::Segments;

namespace {

enum class Kind { ring, ulysses };

std::shared_ptr<attention::CoreAttention> make_attention(Kind kind, comm::Communicator& group) {
  return kind == Kind::ring ? context::make_ring_attention(group) : context::make_ulysses_attention(group);
}

struct Operands {
  Tensor q, k, v, dout;
};

Operands random_operands(int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
                         at::ScalarType type) {
  return {.q = random({tokens, heads, head_dim}, type),
          .k = random({tokens, kv_heads, head_dim}, type),
          .v = random({tokens, kv_heads, head_dim}, type),
          .dout = random({tokens, heads, head_dim}, type)};
}

// Out, dq, dk, dv of the whole list, and dsinks summed over all ranks (0 without sinks).
using Results = std::array<Tensor, 5>;

Results oracle(const Operands& x, const Segments& segments, ScoreSettings settings) {
  const Tensor q = leaf(x.q), k = leaf(x.k), v = leaf(x.v);
  Tensor dsinks = at::zeros({q.size(1)}, at::kDouble);
  if (settings.sinks.defined()) settings.sinks = leaf(settings.sinks);
  const Tensor out = masked_attention(q, k, v, segments, settings);
  out.backward(x.dout.to(at::kDouble));
  if (settings.sinks.defined()) dsinks = settings.sinks.grad();
  return {out.detach(), q.grad(), k.grad(), v.grad(), dsinks};
}

Tensor own_rows(const Tensor& x, const ContextSplit& split) {
  std::vector<Tensor> parts{x.narrow(0, 0, 0)};
  for (const auto& range : split.own()) parts.push_back(x.narrow(0, range.begin, range.length()));
  return test::cat(parts);
}

// Each rank writes its own rows.
void put_rows(const Tensor& from, const ContextSplit& split, const Tensor& to) {
  int64_t local = 0;
  for (const auto& range : split.own()) {
    to.narrow(0, range.begin, range.length()).copy_(from.narrow(0, local, range.length()));
    local += range.length();
  }
}

std::shared_ptr<const ContextSplit> split_of(ContextSplit split, int rank) {
  split.part = rank;
  return std::make_shared<const ContextSplit>(std::move(split));
}

Results on_ranks(Kind kind, const Operands& x, const Segments& segments, const ContextSplit& split,
                 const ScoreSettings& settings) {
  Results all{at::empty_like(x.q), at::empty_like(x.q), at::empty_like(x.k), at::empty_like(x.v),
              at::zeros({x.q.size(1)})};
  std::vector<Tensor> dsinks(static_cast<size_t>(split.parts()), all[4]);
  comm::run_thread_ranks(split.parts(), [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const auto shared = split_of(split, group.rank());
    const ContextSplit& own = *shared;
    const auto core = make_attention(kind, group);
    // Views, as of a fused qkv.
    const Tensor qkv = test::cat({own_rows(x.q, own), own_rows(x.k, own), own_rows(x.v, own)}, 1);
    const int64_t heads = x.q.size(1), kv_heads = x.k.size(1);
    attention::Saved saved;
    const Tensor out =
        core->forward({.q = qkv.narrow(1, 0, heads),
                       .k = qkv.narrow(1, heads, kv_heads),
                       .v = qkv.narrow(1, heads + kv_heads, kv_heads),
                       .documents = segments,
                       .split = shared,
                       .scale = settings.scale,
                       .softcap = settings.softcap,
                       .window = settings.window,
                       .sinks = settings.sinks.defined() ? settings.sinks.to(at::kFloat) : Tensor()},
                      saved);
    if (!out.is_contiguous()) throw Error("the result must be contiguous");
    const auto grads = core->backward(own_rows(x.dout, own), std::move(saved));
    put_rows(out, own, all[0]);
    put_rows(grads.dq, own, all[1]);
    put_rows(grads.dk, own, all[2]);
    put_rows(grads.dv, own, all[3]);
    if (grads.dsinks.defined()) dsinks[static_cast<size_t>(group.rank())] = grads.dsinks;
  });
  all[4] = test::stack(dsinks).sum(0);
  return all;
}

double accuracy(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : 1e-2;
}

void check(Kind kind, const Operands& x, const Segments& segments, const ContextSplit& split,
           const ScoreSettings& settings = {}) {
  const Results expected = oracle(x, segments, settings);
  const Results actual = on_ranks(kind, x, segments, split, settings);
  const Results again = on_ranks(kind, x, segments, split, settings);
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("result " << i);
    const int cancelling = i == 4 ? 2 : 1;  // a sink's gradient is a sum over tokens, of both signs
    CHECK(relative_error(actual[i], expected[i]) < cancelling * accuracy(x.q.scalar_type()));
    CHECK(same_bits(actual[i], again[i]));
  }
}

std::string text(const Segments& segments) {
  std::string result;
  for (const int32_t start : segments.host_starts) result += std::to_string(start) + " ";
  return result;
}

}  // namespace

TEST_CASE("rows shared out among ranks give the attention and gradients of one rank") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(1));
  const Kind kind = GENERATE(Kind::ring, Kind::ulysses);
  const int ranks = GENERATE(2, 3, 4, 8);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  for (const int64_t rows : {1, 3}) {
    // 8 heads divide over 2, 4 and 8 ranks; 2 key-value heads over fewer than four. 3 ranks need 6 heads.
    for (const int64_t kv_heads : {1, 2}) {
      const int64_t heads = ranks == 3 ? 6 : 8, length = 4 * ranks;
      INFO((kind == Kind::ring ? "ring of " : "ulysses of ")
           << ranks << ", rows " << rows << ", kv_heads " << kv_heads);
      const Operands x = random_operands(rows * length, heads, kv_heads, 8, type);
      const auto order = kind == Kind::ring ? ContextOrder::zigzag : ContextOrder::contiguous;
      check(kind, x, tokens::equal_segments(rows, length, at::kCPU),
            tokens::split_rows(order, rows, length, ranks, 0));
    }
  }
}

TEST_CASE("documents that cross ranks attend within themselves") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(2));
  std::mt19937 random(9);
  const Kind kind = GENERATE(Kind::ring, Kind::ulysses);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  for (int round = 0; round < 12; ++round) {
    const int ranks = std::array{2, 3, 4, 8}[static_cast<size_t>(round % 4)];
    const int64_t tokens = 12 * ranks;
    Segments segments = random_documents(random, tokens);
    // By hand: documents shorter than a chunk, of one token, and over three ranks or more.
    if (round == 2) segments = tokens::make_segments({0, 2, 3, 5, 47, 48}, at::kCPU);
    const ContextSplit split = round % 3 == 0 ? random_split(random, tokens, ranks)
                               : round % 3 == 1
                                   ? tokens::split_rows(ContextOrder::contiguous, 1, tokens, ranks, 0)
                                   : tokens::split_rows(ContextOrder::zigzag, 1, tokens, ranks, 0);
    INFO((kind == Kind::ring ? "ring of " : "ulysses of ") << ranks << ", documents " << text(segments));
    check(kind, random_operands(tokens, ranks == 3 ? 6 : 8, 2, 8, type), segments, split);
  }
}

TEST_CASE("ranks take windows, softcaps, sinks and scales") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(3));
  std::mt19937 random(10);
  const Kind kind = GENERATE(Kind::ring, Kind::ulysses);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  for (int round = 0; round < 9; ++round) {
    const int ranks = std::array{2, 3, 4}[static_cast<size_t>(round % 3)];
    const int64_t tokens = 12 * ranks, heads = ranks == 3 ? 6 : 8;
    const Segments segments = random_documents(random, tokens);
    const ContextSplit split =
        round < 3 ? random_split(random, tokens, ranks)
                  : tokens::split_rows(round < 6 ? ContextOrder::contiguous : ContextOrder::zigzag, 1, tokens,
                                       ranks, 0);
    ScoreSettings settings{.window = std::array{2, 5, 14}[static_cast<size_t>(round % 3)]};
    if (round % 2 == 0) settings = {.window = settings.window, .sinks = at::randn({heads}, at::kDouble)};
    if (round > 4) settings.scale = 0.6, settings.softcap = 1.5;
    INFO((kind == Kind::ring ? "ring of " : "ulysses of ")
         << ranks << ", window " << settings.window << ", documents " << text(segments));
    check(kind, random_operands(tokens, heads, 2, 8, type), segments, split, settings);
  }
}

TEST_CASE("a list that is not shared out is computed by each rank for itself") {
  at::set_num_threads(1);
  const Kind kind = GENERATE(Kind::ring, Kind::ulysses);
  const Segments segments = tokens::make_segments({0, 5, 12}, at::kCPU);
  const Operands x = random_operands(12, 4, 2, 8, at::kFloat);
  const auto local = attention::make_local_attention();
  const attention::AttentionCall call{.q = x.q, .k = x.k, .v = x.v, .documents = segments};
  std::array<Tensor, 2> out, dk;
  comm::run_thread_ranks(2, [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    attention::Saved saved;
    const auto core = make_attention(kind, group);
    const auto rank = static_cast<size_t>(group.rank());
    out[rank] = core->forward(call, saved);
    dk[rank] = core->backward(x.dout, std::move(saved)).dk;
  });
  const c10::InferenceMode inference;
  attention::Saved saved;
  const Tensor expected = local->forward(call, saved);
  const Tensor expected_dk = local->backward(x.dout, std::move(saved)).dk;
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(same_bits(out[rank], expected));
    CHECK(same_bits(dk[rank], expected_dk));
  }
}

TEST_CASE("a split of other ranks is refused, and what exchanges around attention do not take") {
  const c10::InferenceMode inference;
  const Kind kind = GENERATE(Kind::ring, Kind::ulysses);
  const auto group = comm::make_dry(kernels::Wire::cp, 0, 2);
  const auto core = make_attention(kind, *group);
  const Segments segments = tokens::equal_segments(1, 16, at::kMeta);
  const Tensor q = at::empty({8, 4, 8}, at::TensorOptions().device(at::kMeta));
  const ContextSplit split = tokens::split_rows(ContextOrder::zigzag, 1, 16, 2, 0);
  attention::Saved saved;
  const auto call = [&](const Segments& documents, const ContextSplit& of, int rank, const Tensor& x) {
    return attention::AttentionCall{
        .q = x, .k = x, .v = x, .documents = documents, .split = split_of(of, rank)};
  };
  CHECK_NOTHROW(core->forward(call(segments, split, 0, q), saved));
  CHECK_THROWS_WITH(core->forward(call(segments, split, 1, q), saved),
                    "attention: tokens of rank 1 of 2, but this is rank 0 of a group of 2");
  const ContextSplit four = tokens::split_rows(ContextOrder::zigzag, 1, 16, 4, 0);
  CHECK_THROWS_AS(core->forward(call(segments, four, 0, q), saved), Error);
  CHECK_THROWS_AS(core->forward(call(segments, split, 0, q.narrow(0, 0, 7)), saved), Error);
  CHECK_THROWS_AS(core->forward(call(tokens::equal_segments(1, 17, at::kMeta), split, 0, q), saved), Error);
  // A single rank needs no keys of other ranks.
  CHECK_THROWS_WITH(
      attention::make_local_attention()->forward(call(segments, split, 0, q), saved),
      "attention: the CPU's kernel does not take a token list that 2 context-parallel ranks share");

  attention::AttentionCall with_sinks = call(segments, split, 0, q);
  with_sinks.sinks = at::empty({3}, q.options());
  CHECK_THROWS_WITH(core->forward(with_sinks, saved), contains_text("one of each of 4 heads"));
}

namespace {

struct DryCosts {
  kernels::Cost forward, backward;
};

DryCosts dry_costs(Kind kind, int rank, const Segments& segments, const ContextSplit& split, const Tensor& q,
                   const Tensor& k, int64_t window = 0) {
  const auto group = comm::make_dry(kernels::Wire::cp, rank, split.parts());
  const auto core = make_attention(kind, *group);
  const kernels::DryRun run;
  attention::Saved saved;
  const Tensor out = core->forward(
      {.q = q, .k = k, .v = k, .documents = segments, .split = split_of(split, rank), .window = window},
      saved);
  CHECK(out.sizes() == q.sizes());
  const DryCosts costs{.forward = run.cost(), .backward = {}};
  const auto grads = core->backward(out, std::move(saved));
  CHECK(grads.dq.sizes() == q.sizes());
  CHECK(grads.dk.sizes() == k.sizes());
  CHECK(grads.dv.sizes() == k.sizes());
  CHECK(grads.dv.scalar_type() == q.scalar_type());
  return {.forward = costs.forward, .backward = run.cost() - costs.forward};
}

}  // namespace

TEST_CASE("dry runs count the operations of a rank's blocks and what it sends") {
  const c10::InferenceMode inference;
  constexpr int ranks = 4;
  constexpr double rows = 2, length = 64, heads = 8, kv_heads = 2, dim = 16, bf16 = 2;
  const auto kind = at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta);
  const int64_t own = static_cast<int64_t>(rows * length) / ranks;
  const Tensor q = at::empty({own, static_cast<int64_t>(heads), static_cast<int64_t>(dim)}, kind);
  const Tensor k = at::empty({own, static_cast<int64_t>(kv_heads), static_cast<int64_t>(dim)}, kind);
  const Segments segments = tokens::equal_segments(2, 64, at::kMeta);
  const double products = 2 * rows * (length * length / 2) * heads * dim / ranks;  // on each rank
  const double kv = static_cast<double>(own) * 2 * kv_heads * dim;  // elements of keys and values
  for (int rank = 0; rank < ranks; ++rank) {
    INFO("rank " << rank);
    const DryCosts ring = dry_costs(Kind::ring, rank, segments,
                                    tokens::split_rows(ContextOrder::zigzag, 2, 64, ranks, rank), q, k);
    CHECK(ring.forward.attention_flops == 2 * products);
    CHECK(ring.backward.attention_flops == 5 * products);
    CHECK(ring.forward.on(kernels::Wire::cp) == kernels::Traffic{.bytes = 3 * kv * bf16, .messages = 3});
    CHECK(ring.backward.on(kernels::Wire::cp) ==
          kernels::Traffic{.bytes = 3 * kv * (bf16 + 4), .messages = 6});
    CHECK(ring.forward.on(kernels::Wire::tp) == kernels::Traffic{});

    const DryCosts ulysses =
        dry_costs(Kind::ulysses, rank, segments,
                  tokens::split_rows(ContextOrder::contiguous, 2, 64, ranks, rank), q, k);
    CHECK(ulysses.forward.attention_flops == 2 * products);
    CHECK(ulysses.backward.attention_flops == 5 * products);
    // Each of three ranks gets two query heads, a key and a value head; two heads of out come back. Then in
    // reverse.
    const double sent = 3 * static_cast<double>(own) * (2 + 2 + 2) * dim * bf16;
    CHECK(ulysses.forward.on(kernels::Wire::cp) == kernels::Traffic{.bytes = sent, .messages = 6});
    CHECK(ulysses.backward.on(kernels::Wire::cp) == kernels::Traffic{.bytes = sent, .messages = 6});
  }
  // Keys within the window are the rank's own or its neighbour's.
  {
    const ContextSplit split = tokens::split_rows(ContextOrder::contiguous, 1, 64, ranks, 2);
    const Tensor own_q = q.narrow(0, 0, 16), own_k = k.narrow(0, 0, 16);
    const auto core_costs = [&](int64_t window) {
      return dry_costs(Kind::ring, 2, tokens::equal_segments(1, 64, at::kMeta), split, own_q, own_k, window);
    };
    const DryCosts windowed = core_costs(9);
    CHECK(windowed.forward.on(kernels::Wire::cp).messages == 1);
    CHECK(core_costs(0).forward.on(kernels::Wire::cp).messages == 3);
    CHECK(windowed.forward.attention_flops == 2 * 2 * 16 * 8.5 * heads * dim);
  }
  // Each document is on one rank, so nothing is sent.
  const DryCosts alone =
      dry_costs(Kind::ring, 1, tokens::equal_segments(ranks, own, at::kMeta),
                tokens::split_rows(ContextOrder::contiguous, 1, own * ranks, ranks, 1), q, k);
  CHECK(alone.forward.on(kernels::Wire::cp) == kernels::Traffic{});
  CHECK(alone.backward.on(kernels::Wire::cp) == kernels::Traffic{});
}

namespace {

// The processor time of this thread: unlike wall time, it is meaningful on a busy machine.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Seconds {
  double wall = 0, processor = 0;
};

Seconds time_pass(attention::CoreAttention& core, const Tensor& dout, const attention::AttentionCall& call) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const double worked = processor_seconds();
  attention::Saved saved;
  core.forward(call, saved);
  core.backward(dout, std::move(saved));
  return {.wall = std::chrono::duration<double>(Clock::now() - begin).count(),
          .processor = processor_seconds() - worked};
}

// The time of the slowest of `ranks`. `local`: without context parallelism.
Seconds time_ranks(Kind kind, int ranks, const Operands& x, const Segments& segments, bool local = false) {
  std::vector<Seconds> all(static_cast<size_t>(ranks));
  comm::run_thread_ranks(ranks, [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const auto order = kind == Kind::ring ? ContextOrder::zigzag : ContextOrder::contiguous;
    const auto split = split_of(tokens::split_rows(order, 1, segments.tokens(), ranks, 0), group.rank());
    const auto own = [&](const Tensor& of) { return own_rows(of, *split); };
    const attention::AttentionCall call{
        .q = own(x.q), .k = own(x.k), .v = own(x.v), .documents = segments, .split = local ? nullptr : split};
    const Tensor dout = own(x.dout);
    const auto core = make_attention(kind, group);
    time_pass(*core, dout, call);
    group.barrier();
    all[static_cast<size_t>(group.rank())] = time_pass(*core, dout, call);
  });
  Seconds slowest;
  for (const Seconds& rank : all) {
    slowest.wall = std::max(slowest.wall, rank.wall);
    slowest.processor = std::max(slowest.processor, rank.processor);
  }
  return slowest;
}

}  // namespace

// Run by hand if two cores are free: test_parallel_context "[.speed]"
TEST_CASE("speed of two ranks against one", "[.speed]") {
  constexpr int64_t length = 8192, heads = 4, kv_heads = 2, dim = 128;
  const Operands x = random_operands(length, heads, kv_heads, dim, at::kBFloat16);
  const Segments segments = tokens::equal_segments(1, length, at::kCPU);
  for (int round = 0; round < 3; ++round) {
    const Seconds local = time_ranks(Kind::ring, 1, x, segments, /*local=*/true);
    const Seconds ring = time_ranks(Kind::ring, 1, x, segments);
    const Seconds ring_2 = time_ranks(Kind::ring, 2, x, segments);
    const Seconds ulysses_2 = time_ranks(Kind::ulysses, 2, x, segments);
    const auto print = [](const char* what, const Seconds& two, const Seconds& one) {
      std::printf("%s: %.3f against %.3f s, %.2fx; of processors %.3f against %.3f s, %.2fx\n", what,
                  two.wall, one.wall, one.wall / two.wall, two.processor, one.processor,
                  one.processor / two.processor);
    };
    print("ring of 2 against one rank", ring_2, local);
    print("ring of 2 against a ring of 1", ring_2, ring);
    print("ulysses of 2 against one rank", ulysses_2, local);
  }
}

TEST_CASE("a ring that saw other documents of the same split attends within those at hand") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(4));
  const Operands x = random_operands(32, 4, 2, 8, at::kFloat);
  const Segments short_ones = tokens::make_segments({0, 8, 16, 24, 32}, at::kCPU),
                 one = tokens::make_segments({0, 32}, at::kCPU);
  const ContextSplit split = tokens::split_rows(ContextOrder::contiguous, 1, 32, 2, 0);
  const Tensor out = at::empty_like(x.q);
  comm::run_thread_ranks(2, [&](comm::Communicator& group) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const auto own = split_of(split, group.rank());
    const auto core = context::make_ring_attention(group);
    for (const Segments& documents : {short_ones, one}) {
      attention::Saved saved;
      put_rows(core->forward({.q = own_rows(x.q, *own),
                              .k = own_rows(x.k, *own),
                              .v = own_rows(x.v, *own),
                              .documents = documents,
                              .split = own},
                             saved),
               *own, out);
    }
  });
  CHECK(relative_error(out, oracle(x, one, {})[0]) < accuracy(at::kFloat));
}

#include "core/attention/cpu.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::attention {
namespace {

using at::Tensor;
using kernels::cpu::by_type;
using kernels::cpu::gemm;
using kernels::cpu::loops;
using kernels::cpu::Matrix;
using kernels::cpu::Op;
using kernels::cpu::parallel_for;
using kernels::cpu::Result;
using kernels::cpu::typed;
using tokens::AttentionBlock;
using BlockSpan = std::span<const AttentionBlock>;

// Query rows taken at a time: GEMMs prefer many.
constexpr int64_t kMostRows = 128;

// Keys of a block taken at a time: the scores of as many rows as GEMMs need stay in the second-level cache. A
// multiple of kMostRows, so that a tile begins at or before the rows that see its end.
constexpr int64_t kMostKeys = 1024;
static_assert(kMostKeys % kMostRows == 0);

// One head of a [tokens, heads, head_dim] tensor: a row-major [tokens, head_dim] matrix.
template <class T>
Matrix<const T> head_in(const Tensor& x, int64_t head) {
  return {kernels::cpu::in<T>(x) + head * x.stride(1), x.stride(0)};
}
template <class T>
Matrix<T> head_out(const Tensor& x, int64_t head) {
  return {kernels::cpu::out<T>(x) + head * x.stride(1), x.stride(0)};
}
template <class T>
Matrix<T> from_row(Matrix<T> matrix, int64_t row) {
  return {matrix.data + row * matrix.stride, matrix.stride};
}

// Working memory of one thread for tiles of `size` scores: uninitialised, reused from tile to tile.
template <class T>
struct Workspace {
  Workspace(int64_t size, int64_t head_dim, bool backward)
      : scores(allocate<float>(size)),
        dweights(allocate<float>(backward ? size : 0)),
        weights(allocate<T>(size)),
        dscores(allocate<T>(backward ? size : 0)),
        product(allocate<float>(kMostRows * head_dim)),
        sums(allocate<float>(kMostRows)) {}

  template <class U>
  static std::unique_ptr<U[]> allocate(int64_t size) {
    return std::make_unique_for_overwrite<U[]>(static_cast<size_t>(size));
  }

  std::unique_ptr<float[]> scores, dweights;
  std::unique_ptr<T[]> weights, dscores;
  std::unique_ptr<float[]> product, sums;
  std::vector<float> dk, dv;  // a group of heads' part of the gradients of its key-value head, in one
                              // document
};

// --- Tiles of one head ---

// How large they are at most.
struct TileSize {
  int64_t rows, keys;
};

// Tile size of a whole document: all keys that its rows see, and so many rows that their scores stay in the
// second-level cache.
TileSize of_document(const AttentionBlock& document, int64_t window) {
  constexpr int64_t kScores = int64_t{1} << 17;
  const int64_t width = window == 0 ? document.keys : std::min(document.keys, window + kMostRows - 1);
  return {std::clamp<int64_t>(kScores / width / 32 * 32, 32, kMostRows), width};
}

TileSize of_block(const AttentionBlock& block, int64_t /*window*/) {
  return {kMostRows, std::min(block.keys, kMostKeys)};
}

using TileSizeOf = TileSize (*)(const AttentionBlock& block, int64_t window);

// Calls f for the tiles of one document's blocks, which keep their order.
template <class F>
void for_tiles(BlockSpan blocks, int64_t window, TileSizeOf size_of, F f) {
  for (const AttentionBlock& block : blocks) {
    const TileSize most = size_of(block, window);
    for_tiles(block, window, most.rows, most.keys, f);
  }
}

// The blocks of each document, which may be computed in parallel.
std::vector<BlockSpan> by_document(BlockSpan blocks) {
  std::vector<BlockSpan> result;
  while (!blocks.empty()) {
    const auto end = std::ranges::find_if(
        blocks, [&](const AttentionBlock& block) { return block.document != blocks.front().document; });
    const auto count = static_cast<size_t>(end - blocks.begin());
    result.push_back(blocks.first(count));
    blocks = blocks.subspan(count);
  }
  return result;
}

// Calls body(head, blocks of a document, workspace) for each of `heads` heads and each document. Heads are
// divided among threads first, then documents within a head: so each thread gets a part of every document,
// long or short.
template <class Body>
void for_heads(const AttentionCall& c, int64_t heads, BlockSpan blocks, TileSizeOf size_of, bool backward,
               const Body& body) {
  const std::vector<BlockSpan> documents = by_document(blocks);
  const auto count = static_cast<int64_t>(documents.size());
  int64_t scores = 0;
  for (const AttentionBlock& block : blocks) {
    const TileSize most = size_of(block, c.window);
    scores = std::max(scores, most.rows * most.keys);
  }
  by_type(c.q, [&]<class T>(T) {
    parallel_for(heads * count, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(scores, c.q.size(2), backward);
      for (int64_t i = begin; i < end; ++i)
        body(i / count, documents[static_cast<size_t>(i % count)], workspace);
    });
  });
}

template <class T>
struct HeadOperands {
  Matrix<const T> q, k, v;
  int64_t head_dim, window;
  float scale, softcap;

  HeadOperands(const AttentionCall& c, int64_t head)
      : q(head_in<T>(c.q, head)),
        k(head_in<T>(c.k, head / (c.q.size(1) / c.k.size(1)))),
        v(head_in<T>(c.v, head / (c.q.size(1) / c.k.size(1)))),
        head_dim(c.q.size(2)),
        window(c.window),
        scale(static_cast<float>(scale_of(c))),
        softcap(static_cast<float>(c.softcap)) {}

  kernels::cpu::ScoreRule rule(const Tile& tile) const {
    return {.first = tile.first,
            .rows = tile.rows,
            .keys = tile.keys,
            .window = window,
            .scale = scale,
            .softcap = softcap};
  }
};

// workspace.product = weights v, to be divided by workspace.sums; logsumexp: of the tile's rows.
template <class T>
void weigh_values(const HeadOperands<T>& x, const Tile& tile, float* logsumexp, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  T* weights = workspace.weights.get();
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, x.head_dim}, from_row(x.q, tile.query),
          from_row(x.k, tile.key), Result::written, {scores, tile.keys});
  typed<T>(loops()).attention_softmax(x.rule(tile), scores, weights, workspace.sums.get(), logsumexp);
  gemm<T>(Op::none, Op::none, {tile.rows, x.head_dim, tile.keys}, {weights, tile.keys},
          from_row(x.v, tile.key), Result::written, {workspace.product.get(), x.head_dim});
}

// One head of a backward pass, in addition to its operands.
template <class T>
struct HeadResults {
  Matrix<const T> dout, out;
  const float* logsumexp;

  HeadResults(const Tensor& all_dout, const Saved& saved, int64_t head)
      : dout(head_in<T>(all_dout, head)),
        out(head_in<T>(saved.out, head)),
        logsumexp(kernels::cpu::in<float>(saved.logsumexp) + head * saved.out.size(0)) {}
};

// workspace.dscores = the gradient of the unscaled scores. Adds the tile's part to dk and dv, which begin
// with its first key.
template <class T>
void add_key_gradients(const HeadOperands<T>& x, const HeadResults<T>& y, const Tile& tile, Matrix<float> dk,
                       Matrix<float> dv, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  float* dweights = workspace.dweights.get();
  T* weights = workspace.weights.get();
  T* dscores = workspace.dscores.get();
  const Matrix<const T> q = from_row(x.q, tile.query), dout = from_row(y.dout, tile.query);
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, x.head_dim}, q, from_row(x.k, tile.key),
          Result::written, {scores, tile.keys});
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, x.head_dim}, dout, from_row(x.v, tile.key),
          Result::written, {dweights, tile.keys});
  typed<T>(loops()).attention_gradient({.scores = scores,
                                        .dweights = dweights,
                                        .logsumexp = y.logsumexp + tile.query,
                                        .dout = dout,
                                        .out = from_row(y.out, tile.query),
                                        .weights = weights,
                                        .dscores = dscores,
                                        .head_dim = x.head_dim,
                                        .rule = x.rule(tile)});
  gemm<T>(Op::transpose, Op::none, {tile.keys, x.head_dim, tile.rows}, {weights, tile.keys}, dout,
          Result::added, dv);
  gemm<T>(Op::transpose, Op::none, {tile.keys, x.head_dim, tile.rows}, {dscores, tile.keys}, q, Result::added,
          dk);
}

// One more score in each row's softmax.
void add_sink(double sink, int64_t rows, float* sums, float* logsumexp) {
  for (int64_t row = 0; row < rows; ++row) {
    const double more = std::exp(sink - static_cast<double>(logsumexp[row]));
    sums[row] = static_cast<float>(static_cast<double>(sums[row]) * (1 + more));
    logsumexp[row] = static_cast<float>(static_cast<double>(logsumexp[row]) + std::log1p(more));
  }
}

}  // namespace

void attend_on_cpu(const Saved& saved, BlockSpan documents) {
  const AttentionCall& c = saved.call;
  const float* const sinks = kernels::cpu::in<float>(c.sinks);
  const auto attend = [&]<class T>(int64_t head, BlockSpan document, Workspace<T>& workspace) {
    const HeadOperands<T> x(c, head);
    const Matrix<T> out = head_out<T>(saved.out, head);
    const auto divide_rows = typed<T>(loops()).divide_rows;
    float* logsumexp = kernels::cpu::out<float>(saved.logsumexp) + head * c.q.size(0);
    for_tiles(document, c.window, of_document, [&](const Tile& tile) {
      weigh_values(x, tile, logsumexp + tile.query, workspace);
      if (sinks != nullptr) add_sink(sinks[head], tile.rows, workspace.sums.get(), logsumexp + tile.query);
      divide_rows(workspace.product.get(), workspace.sums.get(), from_row(out, tile.query), tile.rows,
                  x.head_dim);
    });
  };
  for_heads(c, c.q.size(1), documents, of_document, /*backward=*/false, attend);
}

void attend_on_cpu_backward(const Tensor& dout, const Saved& saved, BlockSpan documents,
                            const Gradients& grads) {
  const AttentionCall& c = saved.call;
  const int64_t kv_heads = c.k.size(1), group = c.q.size(1) / kv_heads, head_dim = c.q.size(2);
  const auto attend = [&]<class T>(int64_t kv_head, BlockSpan blocks, Workspace<T>& workspace) {
    const AttentionBlock& document = blocks.front();
    const auto divide_rows = typed<T>(loops()).divide_rows;
    const auto cleared = [&](std::vector<float>& sums) {
      sums.assign(static_cast<size_t>(document.keys * head_dim), 0.0F);
      return Matrix<float>{sums.data(), head_dim};
    };
    const Matrix<float> dk = cleared(workspace.dk), dv = cleared(workspace.dv);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const HeadOperands<T> x(c, head);
      const HeadResults<T> y(dout, saved, head);
      const Matrix<T> dq = head_out<T>(grads.dq, head);
      for_tiles(blocks, c.window, of_document, [&](const Tile& tile) {
        const int64_t key = tile.key - document.key;
        add_key_gradients(x, y, tile, from_row(dk, key), from_row(dv, key), workspace);
        gemm<T>(Op::none, Op::none, {tile.rows, head_dim, tile.keys}, {workspace.dscores.get(), tile.keys},
                from_row(x.k, tile.key), Result::written, {workspace.product.get(), head_dim});
        divide_rows(workspace.product.get(), nullptr, from_row(dq, tile.query), tile.rows, head_dim);
      });
    }
    divide_rows(dk.data, nullptr, from_row(head_out<T>(grads.dk, kv_head), document.key), document.keys,
                head_dim);
    divide_rows(dv.data, nullptr, from_row(head_out<T>(grads.dv, kv_head), document.key), document.keys,
                head_dim);
  };
  for_heads(c, kv_heads, documents, of_document, /*backward=*/true, attend);
}

void add_blocks_on_cpu(const AttentionCall& c, BlockSpan blocks, const PartialAttention& seen) {
  const auto attend = [&]<class T>(int64_t head, BlockSpan document, Workspace<T>& workspace) {
    const HeadOperands<T> x(c, head);
    const Matrix<float> out = head_out<float>(seen.out, head);
    float* logsumexp = kernels::cpu::out<float>(seen.logsumexp) + head * c.q.size(0);
    for_tiles(document, c.window, of_block, [&](const Tile& tile) {
      float part_logsumexp[kMostRows];
      weigh_values(x, tile, part_logsumexp, workspace);
      loops().attention_merge(workspace.product.get(), workspace.sums.get(), part_logsumexp,
                              from_row(out, tile.query), logsumexp + tile.query, tile.rows, x.head_dim);
    });
  };
  for_heads(c, c.q.size(1), blocks, of_block, /*backward=*/false, attend);
}

void add_blocks_on_cpu_backward(const Tensor& dout, const Saved& saved, BlockSpan blocks,
                                const Gradients& grads) {
  const AttentionCall& c = saved.call;
  const int64_t kv_heads = c.k.size(1), group = c.q.size(1) / kv_heads, head_dim = c.q.size(2);
  const auto attend = [&]<class T>(int64_t kv_head, BlockSpan document, Workspace<T>& workspace) {
    const Matrix<float> dk = head_out<float>(grads.dk, kv_head), dv = head_out<float>(grads.dv, kv_head);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const HeadOperands<T> x(c, head);
      const HeadResults<T> y(dout, saved, head);
      const Matrix<float> dq = head_out<float>(grads.dq, head);
      for_tiles(document, c.window, of_block, [&](const Tile& tile) {
        add_key_gradients(x, y, tile, from_row(dk, tile.key), from_row(dv, tile.key), workspace);
        gemm<T>(Op::none, Op::none, {tile.rows, head_dim, tile.keys}, {workspace.dscores.get(), tile.keys},
                from_row(x.k, tile.key), Result::added, from_row(dq, tile.query));
      });
    }
  };
  for_heads(c, kv_heads, blocks, of_block, /*backward=*/true, attend);
}

void sink_gradient_on_cpu(const Tensor& dout, const Saved& saved, const Tensor& dsinks) {
  by_type(dout, [&]<class T>(T) {
    parallel_for(dout.size(1), 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const HeadResults<T> y(dout, saved, head);
        kernels::cpu::out<float>(dsinks)[head] = static_cast<float>(typed<T>(loops()).sink_gradient(
            y.dout, y.out, y.logsumexp, kernels::cpu::in<float>(saved.call.sinks)[head], dout.size(0),
            dout.size(2)));
      }
    });
  });
}

// Documents and, within them, key-value heads are divided among threads.
void decode_on_cpu(const AttentionCall& c, const KeyValueCache& cache, int64_t layer,
                   std::span<const CachedDocument> documents, const Tensor& out) {
  const int64_t kv_heads = cache.shape().kv_heads, group = c.q.size(1) / kv_heads, head_dim = c.q.size(2);
  int64_t longest = 0;
  for (const CachedDocument& document : documents) longest = std::max(longest, keys_seen(c, document.past));
  const float* const sinks = kernels::cpu::in<float>(c.sinks);
  by_type(c.q, [&]<class T>(T) {
    const auto count = static_cast<int64_t>(documents.size()) * kv_heads;
    parallel_for(count, kernels::cpu::row_grain(longest * head_dim), [&](int64_t begin, int64_t end) {
      const auto scores = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(longest));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / kv_heads, kv_head = i % kv_heads;
        const auto [slot, past] = documents[static_cast<size_t>(row)];
        const int64_t keys = keys_seen(c, past);
        const int64_t first = (kv_head * cache.capacity(slot) + past + 1 - keys) * head_dim;
        typed<T>(loops()).decode_attention(
            {.q = {from_row(head_in<T>(c.q, kv_head * group), row).data, c.q.stride(1)},
             .k = static_cast<const T*>(cache.keys_begin(layer, slot)) + first,
             .v = static_cast<const T*>(cache.values_begin(layer, slot)) + first,
             .out = {from_row(head_out<T>(out, kv_head * group), row).data, out.stride(1)},
             .scores = scores.get(),
             .heads = group,
             .keys = keys,
             .head_dim = head_dim,
             .scale = static_cast<float>(scale_of(c)),
             .softcap = static_cast<float>(c.softcap),
             .sinks = sinks == nullptr ? nullptr : sinks + kv_head * group});
      }
    });
  });
}

}  // namespace pptrain::attention

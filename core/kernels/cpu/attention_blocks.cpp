#include "core/kernels/cpu/attention_blocks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/cpu/attention_head.h"
#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::kernels::cpu {
namespace {

using at::Tensor;
using BlockSpan = std::span<const tokens::AttentionBlock>;

// Keys taken at a time: the scores of as many rows as products like stay in the second-level cache. A
// multiple of kMostRows, so that a tile begins at or before the rows that see its end.
constexpr int64_t kMostKeys = 1024;
static_assert(kMostKeys % kMostRows == 0);

// The blocks of each document: what may be computed beside each other.
std::vector<BlockSpan> by_document(BlockSpan blocks) {
  std::vector<BlockSpan> result;
  while (!blocks.empty()) {
    const auto end = std::ranges::find_if(blocks, [&](const tokens::AttentionBlock& block) {
      return block.document != blocks.front().document;
    });
    const auto count = static_cast<size_t>(end - blocks.begin());
    result.push_back(blocks.first(count));
    blocks = blocks.subspan(count);
  }
  return result;
}

int64_t most_scores(BlockSpan blocks) {
  int64_t keys = 0;
  for (const tokens::AttentionBlock& block : blocks) keys = std::max(keys, block.keys);
  return kMostRows * std::min(keys, kMostKeys);
}

float scale_of(int64_t head_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
}

// Rows [query, query + rows) of the list and keys [key, key + keys) of theirs. The first row sees the keys up
// to number `first` of the tile; `keys` or more: all rows see all.
struct Tile {
  int64_t query, rows, key, keys, first;
};

// Calls f for the tiles of a block, row after row, and of a row in the order of its keys.
template <class F>
void for_tiles(const tokens::AttentionBlock& block, F f) {
  for (int64_t row = 0; row < block.rows; row += kMostRows) {
    const int64_t rows = std::min(kMostRows, block.rows - row);
    const int64_t seen = block.causal ? row + rows : block.keys;
    for (int64_t key = 0; key < seen; key += kMostKeys) {
      const int64_t keys = std::min(kMostKeys, seen - key);
      f(Tile{.query = block.query + row,
             .rows = rows,
             .key = block.key + key,
             .keys = keys,
             .first = block.causal ? row - key : keys});
    }
  }
}

template <class T>
struct ForwardHead {
  Matrix<const T> q, k, v;
  Matrix<float> out;
  float* logsumexp;
};

template <class T>
void forward_tile(const ForwardHead<T>& h, const Tile& tile, int64_t head_dim, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  T* weights = workspace.weights.get();
  float* product = workspace.product.get();
  float logsumexp[kMostRows];
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, head_dim}, from_row(h.q, tile.query),
          from_row(h.k, tile.key), Result::written, {scores, tile.keys});
  typed<T>(loops()).attention_softmax({.scores = scores,
                                       .weights = weights,
                                       .sums = workspace.sums.get(),
                                       .logsumexp = logsumexp,
                                       .first = tile.first,
                                       .rows = tile.rows,
                                       .keys = tile.keys,
                                       .scale = scale_of(head_dim)});
  gemm<T>(Op::none, Op::none, {tile.rows, head_dim, tile.keys}, {weights, tile.keys}, from_row(h.v, tile.key),
          Result::written, {product, head_dim});
  loops().attention_merge({.part = product,
                           .part_sums = workspace.sums.get(),
                           .part_logsumexp = logsumexp,
                           .out = from_row(h.out, tile.query).data,
                           .out_stride = h.out.stride,
                           .logsumexp = h.logsumexp + tile.query,
                           .rows = tile.rows,
                           .head_dim = head_dim});
}

template <class T>
struct BackwardBlock {
  Matrix<const T> dout, q, k, v, out;
  const float* logsumexp;
  Matrix<float> dq, dk, dv;
};

template <class T>
void backward_tile(const BackwardBlock<T>& h, const Tile& tile, int64_t head_dim, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  float* dweights = workspace.dweights.get();
  T* weights = workspace.weights.get();
  T* dscores = workspace.dscores.get();
  const Matrix<const T> q = from_row(h.q, tile.query), dout = from_row(h.dout, tile.query);
  const Matrix<const T> k = from_row(h.k, tile.key), v = from_row(h.v, tile.key);
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, head_dim}, q, k, Result::written,
          {scores, tile.keys});
  gemm<T>(Op::none, Op::transpose, {tile.rows, tile.keys, head_dim}, dout, v, Result::written,
          {dweights, tile.keys});
  typed<T>(loops()).attention_gradient({.scores = scores,
                                        .dweights = dweights,
                                        .logsumexp = h.logsumexp + tile.query,
                                        .dout = dout.data,
                                        .dout_stride = dout.stride,
                                        .out = from_row(h.out, tile.query).data,
                                        .out_stride = h.out.stride,
                                        .weights = weights,
                                        .dscores = dscores,
                                        .first = tile.first,
                                        .rows = tile.rows,
                                        .keys = tile.keys,
                                        .head_dim = head_dim,
                                        .scale = scale_of(head_dim)});
  gemm<T>(Op::transpose, Op::none, {tile.keys, head_dim, tile.rows}, {weights, tile.keys}, dout,
          Result::added, from_row(h.dv, tile.key));
  gemm<T>(Op::transpose, Op::none, {tile.keys, head_dim, tile.rows}, {dscores, tile.keys}, q, Result::added,
          from_row(h.dk, tile.key));
  gemm<T>(Op::none, Op::none, {tile.rows, head_dim, tile.keys}, {dscores, tile.keys}, k, Result::added,
          from_row(h.dq, tile.query));
}

}  // namespace

// Threads share heads first, and documents within a head; the blocks of a document keep their order.
void add_attention_blocks(const Tensor& q, const Tensor& k, const Tensor& v, BlockSpan blocks, Tensor& out,
                          Tensor& logsumexp) {
  const std::vector<BlockSpan> documents = by_document(blocks);
  const auto count = static_cast<int64_t>(documents.size());
  const int64_t group = q.size(1) / k.size(1);
  by_type(q, [&]<class T>(T) {
    parallel_for(q.size(1) * count, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(most_scores(blocks), q.size(2), /*backward=*/false);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / count;
        const ForwardHead<T> args{.q = head_in<T>(q, 0, head),
                                  .k = head_in<T>(k, 0, head / group),
                                  .v = head_in<T>(v, 0, head / group),
                                  .out = head_out<float>(out, 0, head),
                                  .logsumexp = cpu::out<float>(logsumexp) + head * q.size(0)};
        for (const tokens::AttentionBlock& block : documents[static_cast<size_t>(i % count)]) {
          for_tiles(block, [&](const Tile& tile) { forward_tile(args, tile, q.size(2), workspace); });
        }
      }
    });
  });
}

void add_attention_blocks_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& out, const Tensor& logsumexp, BlockSpan blocks, Tensor& dq,
                                   Tensor& dk, Tensor& dv) {
  const std::vector<BlockSpan> documents = by_document(blocks);
  const auto count = static_cast<int64_t>(documents.size());
  const int64_t kv_heads = k.size(1);
  const int64_t group = q.size(1) / kv_heads;
  by_type(q, [&]<class T>(T) {
    parallel_for(kv_heads * count, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(most_scores(blocks), q.size(2), /*backward=*/true);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t kv_head = i / count;
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const BackwardBlock<T> args{.dout = head_in<T>(dout, 0, head),
                                      .q = head_in<T>(q, 0, head),
                                      .k = head_in<T>(k, 0, kv_head),
                                      .v = head_in<T>(v, 0, kv_head),
                                      .out = head_in<T>(out, 0, head),
                                      .logsumexp = in<float>(logsumexp) + head * q.size(0),
                                      .dq = head_out<float>(dq, 0, head),
                                      .dk = head_out<float>(dk, 0, kv_head),
                                      .dv = head_out<float>(dv, 0, kv_head)};
          for (const tokens::AttentionBlock& block : documents[static_cast<size_t>(i % count)]) {
            for_tiles(block, [&](const Tile& tile) { backward_tile(args, tile, q.size(2), workspace); });
          }
        }
      }
    });
  });
}

}  // namespace pptrain::kernels::cpu

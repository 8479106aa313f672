#include "core/kernels/cpu/attention.h"

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

// Query rows taken at a time: their scores should stay in the second-level cache.
int64_t block_rows(int64_t seq) {
  constexpr int64_t kScores = int64_t{1} << 17;
  return std::clamp<int64_t>(kScores / seq / 32 * 32, 32, kMostRows);
}

// Scores of the widest block that any document takes.
int64_t most_scores(const tokens::Segments& segments) {
  int64_t most = 0;
  for (int64_t i = 0; i < segments.documents(); ++i) {
    most = std::max(most, block_rows(segments.length(i)) * segments.length(i));
  }
  return most;
}

// The work on one head of one document.
struct Shape {
  int64_t start, seq;  // the document's tokens: [start, start + seq)
  int64_t head_dim, block;
  float scale;

  Shape(const tokens::Segments& segments, int64_t document, int64_t dim)
      : start(segments.first(document)),
        seq(segments.length(document)),
        head_dim(dim),
        block(block_rows(seq)),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))) {}

  // Rows of the block that starts at the document's query `row`, and the keys that they may see.
  int64_t rows(int64_t row) const { return std::min(block, seq - row); }
  int64_t keys(int64_t row) const { return std::min(row + block, seq); }
};

template <class T>
void forward_head(const Shape& s, Matrix<const T> q, Matrix<const T> k, Matrix<const T> v, Matrix<T> out,
                  float* logsumexp, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  T* weights = workspace.weights.get();
  float* product = workspace.product.get();
  const TypedLoops<T>& table = typed<T>(loops());
  for (int64_t first = 0; first < s.seq; first += s.block) {
    const int64_t rows = s.rows(first);
    const int64_t keys = s.keys(first);
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, from_row(q, first), k, Result::written,
            {scores, keys});
    table.attention_softmax({.scores = scores,
                             .weights = weights,
                             .sums = workspace.sums.get(),
                             .logsumexp = logsumexp + first,
                             .first = first,
                             .rows = rows,
                             .keys = keys,
                             .scale = s.scale});
    gemm<T>(Op::none, Op::none, {rows, s.head_dim, keys}, {weights, keys}, v, Result::written,
            {product, s.head_dim});
    table.divide_rows(product, workspace.sums.get(), from_row(out, first).data, out.stride, rows, s.head_dim);
  }
}

// Adds one query head's share of dk and dv (float [seq, head_dim], contiguous) and writes its dq.
template <class T>
struct BackwardHead {
  Matrix<const T> dout, q, k, v, out;
  const float* logsumexp;
  Matrix<T> dq;
  float *dk, *dv;
};

template <class T>
void backward_head(const Shape& s, const BackwardHead<T>& h, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  float* dweights = workspace.dweights.get();
  T* weights = workspace.weights.get();
  T* dscores = workspace.dscores.get();
  float* product = workspace.product.get();
  const TypedLoops<T>& table = typed<T>(loops());
  for (int64_t first = 0; first < s.seq; first += s.block) {
    const int64_t rows = s.rows(first);
    const int64_t keys = s.keys(first);
    const Matrix<const T> q = from_row(h.q, first);
    const Matrix<const T> dout = from_row(h.dout, first);
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, q, h.k, Result::written, {scores, keys});
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, dout, h.v, Result::written, {dweights, keys});
    table.attention_gradient({.scores = scores,
                              .dweights = dweights,
                              .logsumexp = h.logsumexp + first,
                              .dout = dout.data,
                              .dout_stride = dout.stride,
                              .out = from_row(h.out, first).data,
                              .out_stride = h.out.stride,
                              .weights = weights,
                              .dscores = dscores,
                              .first = first,
                              .rows = rows,
                              .keys = keys,
                              .head_dim = s.head_dim,
                              .scale = s.scale});
    gemm<T>(Op::transpose, Op::none, {keys, s.head_dim, rows}, {weights, keys}, dout, Result::added,
            {h.dv, s.head_dim});
    gemm<T>(Op::transpose, Op::none, {keys, s.head_dim, rows}, {dscores, keys}, q, Result::added,
            {h.dk, s.head_dim});
    gemm<T>(Op::none, Op::none, {rows, s.head_dim, keys}, {dscores, keys}, h.k, Result::written,
            {product, s.head_dim});
    table.divide_rows(product, nullptr, from_row(h.dq, first).data, h.dq.stride, rows, s.head_dim);
  }
}

}  // namespace

// Threads share heads first, and documents within a head: so each gets a share of every document, long or
// short.
void causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const tokens::Segments& segments,
                      Tensor& result, Tensor& logsumexp) {
  const int64_t documents = segments.documents();
  const int64_t group = q.size(1) / k.size(1);
  by_type(q, [&]<class T>(T) {
    parallel_for(q.size(1) * documents, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(most_scores(segments), q.size(2), /*backward=*/false);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / documents;
        const Shape s(segments, i % documents, q.size(2));
        forward_head<T>(s, head_in<T>(q, s.start, head), head_in<T>(k, s.start, head / group),
                        head_in<T>(v, s.start, head / group), head_out<T>(result, s.start, head),
                        out<float>(logsumexp) + head * q.size(0) + s.start, workspace);
      }
    });
  });
}

void causal_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const tokens::Segments& segments, const Tensor& result,
                               const Tensor& logsumexp, Tensor& dq, Tensor& dk, Tensor& dv) {
  const int64_t documents = segments.documents();
  const int64_t kv_heads = k.size(1);
  const int64_t group = q.size(1) / kv_heads;
  const int64_t head_dim = q.size(2);
  by_type(q, [&]<class T>(T) {
    parallel_for(kv_heads * documents, 1, [&](int64_t begin, int64_t end) {
      const TypedLoops<T>& table = typed<T>(loops());
      Workspace<T> workspace(most_scores(segments), head_dim, /*backward=*/true);
      std::vector<float> sum_dk(static_cast<size_t>(segments.longest * head_dim));
      std::vector<float> sum_dv(sum_dk.size());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t kv_head = i / documents;
        const Shape s(segments, i % documents, head_dim);
        std::fill_n(sum_dk.begin(), s.seq * head_dim, 0.0F);
        std::fill_n(sum_dv.begin(), s.seq * head_dim, 0.0F);
        for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const BackwardHead<T> args{.dout = head_in<T>(dout, s.start, head),
                                     .q = head_in<T>(q, s.start, head),
                                     .k = head_in<T>(k, s.start, kv_head),
                                     .v = head_in<T>(v, s.start, kv_head),
                                     .out = head_in<T>(result, s.start, head),
                                     .logsumexp = in<float>(logsumexp) + head * q.size(0) + s.start,
                                     .dq = head_out<T>(dq, s.start, head),
                                     .dk = sum_dk.data(),
                                     .dv = sum_dv.data()};
          backward_head<T>(s, args, workspace);
        }
        const Matrix<T> to_dk = head_out<T>(dk, s.start, kv_head);
        const Matrix<T> to_dv = head_out<T>(dv, s.start, kv_head);
        table.divide_rows(sum_dk.data(), nullptr, to_dk.data, to_dk.stride, s.seq, head_dim);
        table.divide_rows(sum_dv.data(), nullptr, to_dv.data, to_dv.stride, s.seq, head_dim);
      }
    });
  });
}

}  // namespace pptrain::kernels::cpu

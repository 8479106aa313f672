#include "core/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"

namespace pptrain::kernels::cpu {
namespace {

using at::Tensor;

// One head of a [batch, seq, heads, head_dim] tensor: a row-major [seq, head_dim] matrix.
template <class T>
Matrix<const T> head_in(const Tensor& x, int64_t batch, int64_t head) {
  return {in<T>(x) + batch * x.stride(0) + head * x.stride(2), x.stride(1)};
}
template <class T>
Matrix<T> head_out(const Tensor& x, int64_t batch, int64_t head) {
  return {out<T>(x) + batch * x.stride(0) + head * x.stride(2), x.stride(1)};
}
template <class T>
Matrix<T> from_row(Matrix<T> matrix, int64_t row) {
  return {matrix.data + row * matrix.stride, matrix.stride};
}

// Query rows taken at a time: their scores should stay in the second-level cache, and products prefer many.
int64_t block_rows(int64_t seq) {
  constexpr int64_t kScores = int64_t{1} << 17;
  return std::clamp<int64_t>(kScores / seq / 32 * 32, 32, 128);
}

// Working memory of one thread: uninitialised, reused from head to head.
template <class T>
struct Workspace {
  Workspace(int64_t block, int64_t seq, int64_t head_dim, bool backward)
      : scores(allocate<float>(block * seq)),
        dweights(allocate<float>(backward ? block * seq : 0)),
        weights(allocate<T>(block * seq)),
        dscores(allocate<T>(backward ? block * seq : 0)),
        product(allocate<float>(block * head_dim)),
        sums(allocate<float>(block)) {}

  template <class U>
  static std::unique_ptr<U[]> allocate(int64_t size) {
    return std::make_unique_for_overwrite<U[]>(static_cast<size_t>(size));
  }

  std::unique_ptr<float[]> scores, dweights;
  std::unique_ptr<T[]> weights, dscores;
  std::unique_ptr<float[]> product, sums;
};

template <class T>
struct Shape {
  int64_t seq, heads, group, head_dim, block;
  float scale;

  Shape(const Tensor& q, const Tensor& k)
      : seq(q.size(1)),
        heads(q.size(2)),
        group(q.size(2) / k.size(2)),
        head_dim(q.size(3)),
        block(block_rows(q.size(1))),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(q.size(3))))) {}

  // Rows of the block that starts at query `first`, and the keys that they may see.
  int64_t rows(int64_t first) const { return std::min(block, seq - first); }
  int64_t keys(int64_t first) const { return std::min(first + block, seq); }
};

template <class T>
void forward_head(const Shape<T>& s, Matrix<const T> q, Matrix<const T> k, Matrix<const T> v, Matrix<T> out,
                  float* logsumexp, Workspace<T>& workspace) {
  float* scores = workspace.scores.get();
  T* weights = workspace.weights.get();
  float* product = workspace.product.get();
  const TypedLoops<T>& table = typed<T>(loops());
  for (int64_t first = 0; first < s.seq; first += s.block) {
    const int64_t rows = s.rows(first);
    const int64_t keys = s.keys(first);
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, from_row(q, first), k, 0, {scores, keys});
    table.attention_softmax({.scores = scores,
                             .weights = weights,
                             .sums = workspace.sums.get(),
                             .logsumexp = logsumexp + first,
                             .first = first,
                             .rows = rows,
                             .keys = keys,
                             .scale = s.scale});
    gemm<T>(Op::none, Op::none, {rows, s.head_dim, keys}, {weights, keys}, v, 0, {product, s.head_dim});
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
void backward_head(const Shape<T>& s, const BackwardHead<T>& h, Workspace<T>& workspace) {
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
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, q, h.k, 0, {scores, keys});
    gemm<T>(Op::none, Op::transpose, {rows, keys, s.head_dim}, dout, h.v, 0, {dweights, keys});
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
    gemm<T>(Op::transpose, Op::none, {keys, s.head_dim, rows}, {weights, keys}, dout, 1, {h.dv, s.head_dim});
    gemm<T>(Op::transpose, Op::none, {keys, s.head_dim, rows}, {dscores, keys}, q, 1, {h.dk, s.head_dim});
    gemm<T>(Op::none, Op::none, {rows, s.head_dim, keys}, {dscores, keys}, h.k, 0, {product, s.head_dim});
    table.divide_rows(product, nullptr, from_row(h.dq, first).data, h.dq.stride, rows, s.head_dim);
  }
}

}  // namespace

bool has_attention() {
  return has_gemm();
}

void causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& result, Tensor& logsumexp) {
  by_type(q, [&]<class T>(T) {
    const Shape<T> s(q, k);
    parallel_for(q.size(0) * s.heads, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(s.block, s.seq, s.head_dim, /*backward=*/false);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / s.heads;
        const int64_t head = i % s.heads;
        forward_head<T>(s, head_in<T>(q, batch, head), head_in<T>(k, batch, head / s.group),
                        head_in<T>(v, batch, head / s.group), head_out<T>(result, batch, head),
                        out<float>(logsumexp) + i * s.seq, workspace);
      }
    });
  });
}

void causal_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& result, const Tensor& logsumexp, Tensor& dq, Tensor& dk,
                               Tensor& dv) {
  by_type(q, [&]<class T>(T) {
    const Shape<T> s(q, k);
    const int64_t kv_heads = k.size(2);
    parallel_for(q.size(0) * kv_heads, 1, [&](int64_t begin, int64_t end) {
      Workspace<T> workspace(s.block, s.seq, s.head_dim, /*backward=*/true);
      std::vector<float> sum_dk(static_cast<size_t>(s.seq * s.head_dim));
      std::vector<float> sum_dv(sum_dk.size());
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / kv_heads;
        const int64_t kv_head = i % kv_heads;
        std::fill(sum_dk.begin(), sum_dk.end(), 0.0F);
        std::fill(sum_dv.begin(), sum_dv.end(), 0.0F);
        for (int64_t head = kv_head * s.group; head < (kv_head + 1) * s.group; ++head) {
          const BackwardHead<T> args{.dout = head_in<T>(dout, batch, head),
                                     .q = head_in<T>(q, batch, head),
                                     .k = head_in<T>(k, batch, kv_head),
                                     .v = head_in<T>(v, batch, kv_head),
                                     .out = head_in<T>(result, batch, head),
                                     .logsumexp = in<float>(logsumexp) + (batch * s.heads + head) * s.seq,
                                     .dq = head_out<T>(dq, batch, head),
                                     .dk = sum_dk.data(),
                                     .dv = sum_dv.data()};
          backward_head<T>(s, args, workspace);
        }
        const Matrix<T> to_dk = head_out<T>(dk, batch, kv_head);
        const Matrix<T> to_dv = head_out<T>(dv, batch, kv_head);
        const TypedLoops<T>& table = typed<T>(loops());
        table.divide_rows(sum_dk.data(), nullptr, to_dk.data, to_dk.stride, s.seq, s.head_dim);
        table.divide_rows(sum_dv.data(), nullptr, to_dv.data, to_dv.stride, s.seq, s.head_dim);
      }
    });
  });
}

}  // namespace pptrain::kernels::cpu

#include "core/nn/causal_attention.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "core/kernels/cpu/attention.h"
#include "core/nn/library_attention.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

bool use_library(const Tensor& q) {
  return !q.is_meta() && !(q.device().is_cpu() && kernels::cpu::has_attention());
}

}  // namespace

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const kernels::Segments& segments,
                        AttentionStatistics& statistics) {
  if (use_library(q)) return library_attention(q, k, v, segments, statistics);
  Tensor out = at::empty(q.sizes(), q.options());
  Tensor logsumexp = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  if (!q.is_meta()) kernels::cpu::causal_attention(q, k, v, segments, out, logsumexp);
  statistics.calls = {{.logsumexp = std::move(logsumexp), .rng_seed = {}, .rng_offset = {}}};
  return out;
}

AttentionGradients causal_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const kernels::Segments& segments,
                                             const Tensor& out, const AttentionStatistics& statistics) {
  if (use_library(q)) return library_attention_backward(dout, q, k, v, segments, out, statistics);
  AttentionGradients grads{.dq = at::empty(q.sizes(), q.options()),
                           .dk = at::empty(k.sizes(), k.options()),
                           .dv = at::empty(v.sizes(), v.options())};
  if (!q.is_meta()) {
    kernels::cpu::causal_attention_backward(dout, q, k, v, segments, out, statistics.calls.front().logsumexp,
                                            grads.dq, grads.dk, grads.dv);
  }
  return grads;
}

}  // namespace pptrain::nn

#include "core/nn/causal_attention.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "core/kernels/cpu/attention.h"
#include "core/kernels/cuda/cudnn_shape.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"
#include "core/nn/attention_choice.h"
#include "core/nn/cuda_attention.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

// Operations of one product over all heads: a causal row of a document of n tokens sees n / 2 keys on
// average.
double product_flops(const Tensor& q, const tokens::Segments& segments) {
  double pairs = 0;
  for (int64_t i = 0; i < segments.documents(); ++i) {
    const auto length = static_cast<double>(segments.length(i));
    pairs += length * length / 2;
  }
  return 2 * pairs * static_cast<double>(q.size(1) * q.size(2));
}

// Two products forward; five backward, where the scores are computed again.
kernels::Cost cost_of(double products, const Tensor& q, const tokens::Segments& segments,
                      kernels::Cost moved) {
  moved.attention_flops = products * product_flops(q, segments);
  return moved;
}

// Of the GPU that a dry run stands for; nothing where that is a CPU's.
void record_forward_scratch(const Tensor& q, const Tensor& k, const tokens::Segments& segments,
                            AttentionOptions options) {
  const kernels::GpuKind gpu = kernels::dry_gpu();
  if (!gpu.is_gpu()) return;
  const AttentionCall call = describe_call(q, k, segments, options.deterministic, gpu.capability);
  kernels::record_scratch(forward_scratch(choose_attention(call), call));
}

// Of a dry run.
AttentionGradients dry_gradients(const Tensor& q, const Tensor& k, const tokens::Segments& segments,
                                 AttentionOptions options) {
  const kernels::GpuKind gpu = kernels::dry_gpu();
  if (!gpu.is_gpu()) return empty_fused_gradients(q, k.size(1));
  const AttentionCall call = describe_call(q, k, segments, options.deterministic, gpu.capability);
  const AttentionBackEnd back_end = choose_attention(call);
  AttentionGradients grads = empty_gradients(back_end, q, k, segments);
  kernels::record_scratch(backward_scratch(back_end, call, gpu.multiprocessors));
  return grads;
}

}  // namespace

AttentionGradients empty_fused_gradients(const Tensor& q, int64_t kv_heads) {
  const int64_t heads = q.size(1);
  const Tensor fused = at::empty({q.size(0), heads + 2 * kv_heads, q.size(2)}, q.options());
  return {.dq = fused.narrow(1, 0, heads),
          .dk = fused.narrow(1, heads, kv_heads),
          .dv = fused.narrow(1, heads + kv_heads, kv_heads),
          .fused = fused};
}

AttentionGradients empty_gradients(AttentionBackEnd back_end, const Tensor& q, const Tensor& k,
                                   const tokens::Segments& s) {
  const auto shape = kernels::cuda::cudnn_shape(s.documents(), s.longest, s.tokens(), s.equal_lengths());
  if (back_end == AttentionBackEnd::cudnn && !shape.ragged) return empty_fused_gradients(q, k.size(1));
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {.dq = like(q), .dk = like(k), .dv = like(k)};
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const tokens::Segments& segments,
                        AttentionStatistics& statistics, AttentionOptions options) {
  statistics.options = options;
  if (q.is_cuda()) return cuda_attention(q, k, v, segments, statistics);
  Tensor out = at::empty(q.sizes(), q.options());
  Tensor logsumexp = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  const kernels::Cost cost = cost_of(2, q, segments, kernels::moving(q, k, v, out, logsumexp));
  if (kernels::is_dry(q)) {
    kernels::record(cost);
    record_forward_scratch(q, k, segments, options);
  } else {
    kernels::KernelClock::time({"causal_attention", {}}, cost,
                               [&] { kernels::cpu::causal_attention(q, k, v, segments, out, logsumexp); });
  }
  statistics.calls = {{.logsumexp = std::move(logsumexp), .rng_seed = {}, .rng_offset = {}}};
  return out;
}

AttentionGradients causal_attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const tokens::Segments& segments,
                                             const Tensor& out, const AttentionStatistics& statistics) {
  if (q.is_cuda()) return cuda_attention_backward(dout, q, k, v, segments, out, statistics);
  AttentionGradients grads = kernels::is_dry(q) ? dry_gradients(q, k, segments, statistics.options)
                                                : empty_fused_gradients(q, k.size(1));
  const Tensor& logsumexp = statistics.calls.front().logsumexp;
  const kernels::Cost cost =
      cost_of(5, q, segments, kernels::moving(q, k, v, out, dout, logsumexp, grads.dq, grads.dk, grads.dv));
  if (kernels::is_dry(q)) {
    kernels::record(cost);
  } else {
    kernels::KernelClock::time({"causal_attention_backward", {}}, cost, [&] {
      kernels::cpu::causal_attention_backward(dout, q, k, v, segments, out, logsumexp, grads.dq, grads.dk,
                                              grads.dv);
    });
  }
  return grads;
}

}  // namespace pptrain::nn

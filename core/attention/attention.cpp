#include "core/attention/attention.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "core/attention/cpu.h"
#include "core/attention/cudnn/cudnn_shape.h"
#include "core/attention/gpu.h"
#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"

namespace pptrain::attention {
namespace {

using at::Tensor;

struct Declaration {
  BackEnd back_end;
  std::string_view name;
  Takes takes;
};

// What a back end does not declare here, it refuses.
constexpr std::array declarations{
    Declaration{BackEnd::cpu, "the CPU's kernel", {.scale = true}},
    Declaration{BackEnd::cpu_blocks, "the CPU's kernel for blocks of keys", {.scale = true}},
    Declaration{BackEnd::cpu_decode, "the CPU's kernel for cached keys", {.scale = true}},
    Declaration{BackEnd::cudnn, "cuDNN", {}},
    Declaration{BackEnd::flash, "FlashAttention-2", {}},
    Declaration{BackEnd::flash_blocks, "FlashAttention-2 on blocks of keys", {}},
    Declaration{BackEnd::efficient, "LibTorch's memory-efficient attention", {}},
    Declaration{BackEnd::library_decode, "LibTorch's attention over cached keys", {.scale = true}},
    Declaration{BackEnd::composed_blocks, "LibTorch's plain operators", {.scale = true}},
    Declaration{BackEnd::ring, "ring attention", {.split = true}},
    Declaration{BackEnd::ulysses, "Ulysses attention", {.split = true}},
};

const Declaration& declaration_of(BackEnd back_end) {
  return declarations[static_cast<size_t>(back_end)];
}

constexpr bool in_order() {
  for (size_t i = 0; i < declarations.size(); ++i) {
    if (static_cast<size_t>(declarations[i].back_end) != i) return false;
  }
  return true;
}
static_assert(in_order());

// Operations of one product over all heads: a causal row of a document of n tokens sees n / 2 keys on
// average.
double product_flops(const AttentionCall& call) {
  double pairs = 0;
  for (int64_t i = 0; i < call.documents.documents(); ++i) {
    const auto length = static_cast<double>(call.documents.length(i));
    pairs += length * length / 2;
  }
  return 2 * pairs * static_cast<double>(call.q.size(1) * call.q.size(2));
}

// Two products forward; five backward, where the scores are computed again.
kernels::Cost cost_of(double products, const AttentionCall& call, kernels::Cost moved) {
  moved.attention_flops = products * product_flops(call);
  return moved;
}

// Of a GPU that is there, of the one that a dry run stands for, or of the CPU.
BackEnd choose(const AttentionCall& call) {
  if (call.q.is_cuda()) return choose_on_gpu(call);
  const kernels::GpuKind gpu = kernels::is_dry(call.q) ? kernels::dry_gpu() : kernels::GpuKind{};
  return gpu.is_gpu() ? choose_on_gpu(describe_call(call, gpu.capability)) : BackEnd::cpu;
}

class LocalAttention final : public CoreAttention {
 public:
  explicit LocalAttention(bool deterministic) : deterministic_(deterministic) {}

  Tensor forward(AttentionCall call, Saved& saved) override {
    call.deterministic = deterministic_;
    return attend(std::move(call), saved);
  }

  Gradients backward(const Tensor& dout, Saved saved) override { return attend_backward(dout, saved); }

 private:
  bool deterministic_;
};

}  // namespace

double scale_of(const AttentionCall& call) {
  return call.scale.value_or(1 / std::sqrt(static_cast<double>(call.q.size(2))));
}

std::string_view name_of(BackEnd back_end) {
  return declaration_of(back_end).name;
}

Takes what_takes(BackEnd back_end) {
  return declaration_of(back_end).takes;
}

void require_taken(BackEnd back_end, const AttentionCall& call) {
  // All members, so that a new one does not compile before this function knows it.
  const auto& [q, k, v, documents, split, scale, softcap, window, sinks, deterministic] = call;
  const Takes takes = what_takes(back_end);
  std::vector<std::string> refused;
  if (split && !takes.split) {
    refused.push_back(fmt::format("a token list that {} context-parallel ranks share", split->parts()));
  }
  if (scale && !takes.scale) refused.push_back(fmt::format("a scale of its own ({})", *scale));
  if (softcap != 0 && !takes.softcap) refused.push_back(fmt::format("a softcap of scores ({})", softcap));
  if (window != 0 && !takes.window) refused.push_back(fmt::format("a sliding window ({} tokens)", window));
  if (sinks.defined() && !takes.sinks) refused.push_back("attention sinks");
  if (refused.empty()) return;
  throw Error(fmt::format("attention: {} does not take {}", name_of(back_end), fmt::join(refused, ", ")));
}

std::vector<Tensor> Saved::tensors() const {
  return {call.q, call.k, call.v, out, logsumexp, rng_seed, rng_offset};
}

Gradients empty_gradients(BackEnd back_end, const AttentionCall& call) {
  const Tensor& q = call.q;
  const tokens::Segments& s = call.documents;
  const bool ragged = cudnn_shape(s.documents(), s.longest, s.tokens(), s.equal_lengths()).ragged;
  if (back_end == BackEnd::cpu || (back_end == BackEnd::cudnn && !ragged)) {
    const int64_t heads = q.size(1), kv_heads = call.k.size(1);
    const Tensor fused = at::empty({q.size(0), heads + 2 * kv_heads, q.size(2)}, q.options());
    return {.dq = fused.narrow(1, 0, heads),
            .dk = fused.narrow(1, heads, kv_heads),
            .dv = fused.narrow(1, heads + kv_heads, kv_heads),
            .fused = fused};
  }
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {.dq = like(q), .dk = like(call.k), .dv = like(call.v)};
}

Tensor attend(AttentionCall call, Saved& saved) {
  const BackEnd back_end = choose(call);
  return attend_by(back_end, std::move(call), saved);
}

Tensor attend_by(BackEnd back_end, AttentionCall call, Saved& saved) {
  require_taken(back_end, call);
  saved = {.call = std::move(call), .back_end = back_end};
  const AttentionCall& c = saved.call;
  if (c.q.is_cuda()) {
    attend_on_gpu(saved);
    return saved.out;
  }
  saved.out = at::empty(c.q.sizes(), c.q.options());
  saved.logsumexp = at::empty({c.q.size(1), c.q.size(0)}, c.q.options().dtype(at::kFloat));
  const kernels::Cost cost = cost_of(2, c, kernels::moving(c.q, c.k, c.v, saved.out, saved.logsumexp));
  if (kernels::is_dry(c.q)) {
    kernels::record(cost);
    kernels::record_scratch(forward_scratch(back_end, describe_call(c, kernels::dry_gpu().capability)));
  } else {
    kernels::KernelClock::time({"causal_attention", {}}, cost, [&] { attend_on_cpu(saved); });
  }
  return saved.out;
}

Gradients attend_backward(const Tensor& dout, const Saved& saved) {
  const AttentionCall& c = saved.call;
  if (c.q.is_cuda()) return attend_on_gpu_backward(dout, saved);
  const Gradients grads = empty_gradients(saved.back_end, c);
  const kernels::Cost cost = cost_of(
      5, c, kernels::moving(c.q, c.k, c.v, saved.out, dout, saved.logsumexp, grads.dq, grads.dk, grads.dv));
  if (kernels::is_dry(c.q)) {
    const kernels::GpuKind gpu = kernels::dry_gpu();
    const CallShape shape = describe_call(c, gpu.capability);
    kernels::record_scratch(backward_scratch(saved.back_end, shape, gpu.multiprocessors));
    kernels::record(cost);
  } else {
    kernels::KernelClock::time({"causal_attention_backward", {}}, cost,
                               [&] { attend_on_cpu_backward(dout, saved, grads); });
  }
  return grads;
}

std::shared_ptr<CoreAttention> make_local_attention(bool deterministic) {
  return std::make_shared<LocalAttention>(deterministic);
}

}  // namespace pptrain::attention

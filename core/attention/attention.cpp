#include "core/attention/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "core/attention/blocks.h"
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

constexpr Takes all_of_a_rank{.scale = true, .softcap = true, .window = true, .sinks = true};
constexpr Takes all_of_ranks{.split = true, .scale = true, .softcap = true, .window = true, .sinks = true};

// What a back end does not declare here, it refuses.
constexpr std::array declarations{
    Declaration{BackEnd::cpu, "the CPU's kernel", all_of_a_rank},
    Declaration{BackEnd::cpu_blocks, "the CPU's kernel for blocks of keys", all_of_a_rank},
    Declaration{BackEnd::cpu_decode, "the CPU's kernel for cached keys", all_of_a_rank},
    Declaration{BackEnd::cudnn, "cuDNN", {}},
    Declaration{BackEnd::flash, "FlashAttention-2", {.scale = true, .window = true}},
    Declaration{BackEnd::flash_blocks,
                "FlashAttention-2 on blocks of keys",
                {.scale = true, .window = true, .sinks = true}},
    Declaration{BackEnd::efficient, "LibTorch's memory-efficient attention", {.scale = true}},
    Declaration{BackEnd::library_decode, "LibTorch's attention over cached keys", all_of_a_rank},
    Declaration{BackEnd::composed_blocks, "LibTorch's plain operators", all_of_a_rank},
    Declaration{BackEnd::ring, "ring attention", all_of_ranks},
    Declaration{BackEnd::ulysses, "Ulysses attention", all_of_ranks},
    Declaration{BackEnd::sequence_slices, "attention of sequence slices", all_of_ranks},
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

double default_scale(const AttentionCall& call) {
  return 1 / std::sqrt(static_cast<double>(call.q.size(2)));
}

// The back ends for blocks that compute whole documents too.
bool is_by_blocks(BackEnd back_end) {
  return back_end == BackEnd::flash_blocks || back_end == BackEnd::composed_blocks;
}

// Chooses for the GPU that is there, for the GPU that a dry run stands for, or for the CPU.
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
  return call.scale.value_or(default_scale(call));
}

std::string_view name_of(BackEnd back_end) {
  return declaration_of(back_end).name;
}

Takes what_takes(BackEnd back_end) {
  return declaration_of(back_end).takes;
}

Takes what_asks(const AttentionCall& call) {
  // All members, so that a new one does not compile before this function knows it.
  const auto& [q, k, v, documents, split, scale, softcap, window, sinks, deterministic, computed_again] =
      call;
  return {.split = split != nullptr,
          .scale = scale && *scale != default_scale(call),
          .softcap = softcap != 0,
          .window = window != 0,
          .sinks = sinks.defined()};
}

bool takes(BackEnd back_end, const Takes& asked) {
  const Takes taken = what_takes(back_end);
  return (taken.split || !asked.split) && (taken.scale || !asked.scale) &&
         (taken.softcap || !asked.softcap) && (taken.window || !asked.window) &&
         (taken.sinks || !asked.sinks);
}

namespace {

void require_sinks(const AttentionCall& call) {
  const bool of_heads = call.sinks.dim() == 1 && call.sinks.size(0) == call.q.size(1);
  if (!of_heads || call.sinks.scalar_type() != at::kFloat)
    throw Error(fmt::format("attention: sinks must be float32, one of each of {} heads", call.q.size(1)));
}

}  // namespace

void require_taken(BackEnd back_end, const AttentionCall& call) {
  const Takes taken = what_takes(back_end), asked = what_asks(call);
  std::vector<std::string> refused;
  if (asked.split && !taken.split) {
    refused.push_back(fmt::format("a token list that {} context-parallel ranks share", call.split->parts()));
  }
  if (asked.scale && !taken.scale) refused.push_back(fmt::format("a scale of its own ({})", *call.scale));
  if (asked.softcap && !taken.softcap)
    refused.push_back(fmt::format("a softcap of scores ({})", call.softcap));
  if (asked.window && !taken.window)
    refused.push_back(fmt::format("a sliding window ({} tokens)", call.window));
  if (asked.sinks && !taken.sinks) refused.push_back("attention sinks");
  if (asked.sinks) require_sinks(call);
  if (refused.empty()) return;
  throw Error(fmt::format("attention: {} does not take {}", name_of(back_end), fmt::join(refused, ", ")));
}

std::vector<Tensor> Saved::tensors() const {
  return {call.q, call.k, call.v, call.sinks, out, logsumexp, rng_seed, rng_offset};
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
  call.sinks = copy_sinks(call);
  saved = {.call = std::move(call), .back_end = back_end};
  const AttentionCall& c = saved.call;
  if (is_by_blocks(back_end)) {
    attend_in_blocks(saved);
    return saved.out;
  }
  if (c.q.is_cuda()) {
    attend_on_gpu(saved);
    return saved.out;
  }
  saved.out = at::empty(c.q.sizes(), c.q.options());
  saved.logsumexp = at::empty({c.q.size(1), c.q.size(0)}, c.q.options().dtype(at::kFloat));
  const auto documents = document_blocks(c.documents);
  const kernels::Cost cost =
      cost_of(2, c, documents, kernels::moving(c.q, c.k, c.v, saved.out, saved.logsumexp));
  if (kernels::is_dry(c.q)) {
    kernels::record(cost);
    kernels::record_scratch(forward_scratch(back_end, describe_call(c, kernels::dry_gpu().capability)));
  } else {
    kernels::KernelClock::time({"causal_attention", {}}, cost, [&] { attend_on_cpu(saved, documents); });
  }
  return saved.out;
}

namespace {

// All but dsinks.
Gradients operand_gradients(const Tensor& dout, const Saved& saved) {
  const AttentionCall& c = saved.call;
  if (is_by_blocks(saved.back_end)) return attend_in_blocks_backward(dout, saved);
  if (c.q.is_cuda()) return attend_on_gpu_backward(dout, saved);
  const Gradients grads = empty_gradients(saved.back_end, c);
  const auto documents = document_blocks(c.documents);
  const kernels::Cost cost = cost_of(  // five GEMMs, since the scores are recomputed
      5, c, documents,
      kernels::moving(c.q, c.k, c.v, saved.out, dout, saved.logsumexp, grads.dq, grads.dk, grads.dv));
  if (kernels::is_dry(c.q)) {
    const kernels::GpuKind gpu = kernels::dry_gpu();
    const CallShape shape = describe_call(c, gpu.capability);
    kernels::record_scratch(backward_scratch(saved.back_end, shape, gpu.multiprocessors));
    kernels::record(cost);
  } else {
    kernels::KernelClock::time({"causal_attention_backward", {}}, cost,
                               [&] { attend_on_cpu_backward(dout, saved, documents, grads); });
  }
  return grads;
}

}  // namespace

Gradients attend_backward(const Tensor& dout, const Saved& saved) {
  Gradients grads = operand_gradients(dout, saved);
  grads.dsinks = sink_gradient(dout, saved);
  return grads;
}

Tensor copy_sinks(const AttentionCall& call) {
  return call.sinks.defined() ? call.sinks.clone() : Tensor();
}

Tensor sink_gradient(const Tensor& dout, const Saved& saved) {
  const Tensor& sinks = saved.call.sinks;
  if (!sinks.defined()) return {};
  const Tensor dsinks = at::empty_like(sinks);
  const kernels::Cost cost = kernels::moving(dout, saved.out, saved.logsumexp);
  if (kernels::is_dry(dout)) {
    kernels::record(cost);
  } else if (dout.is_cpu()) {
    kernels::KernelClock::time({"attention_sink_gradient", {}}, cost,
                               [&] { sink_gradient_on_cpu(dout, saved, dsinks); });
  } else {
    const Tensor means = dout.to(at::kFloat).mul(saved.out).sum(2).t();  // [heads, tokens]
    const Tensor weights = at::exp(sinks.unsqueeze(1).sub(saved.logsumexp));
    dsinks.copy_(weights.mul_(means).sum(1).neg_());
  }
  return dsinks;
}

std::shared_ptr<CoreAttention> make_local_attention(bool deterministic) {
  return std::make_shared<LocalAttention>(deterministic);
}

}  // namespace pptrain::attention

// Causal attention at the program's shapes: as the program calls it, compared with ATen's back ends.
#include "core/attention/attention.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/data/tokens/segments.h"
#include "test/gpu/bench/sections.h"

namespace pptrain::bench {
namespace {

using at::Tensor;

// q, k, v as views of the fused GEMM's result, [tokens, heads, head_dim], and the gradient of the output.
struct Operands {
  Tensor q, k, v, dout;
  tokens::Segments segments;
};

Operands make_operands(const Bench& bench, int64_t sequence) {
  const Sizes& sizes = bench.sizes();
  const int64_t tokens = sizes.max_rows();
  const Tensor qkv = bench.random({tokens, sizes.heads + 2 * sizes.kv_heads, sizes.head_dim}, at::kBFloat16);
  return {.q = qkv.narrow(1, 0, sizes.heads),
          .k = qkv.narrow(1, sizes.heads, sizes.kv_heads),
          .v = qkv.narrow(1, sizes.heads + sizes.kv_heads, sizes.kv_heads),
          .dout = bench.random({tokens, sizes.heads, sizes.head_dim}, at::kBFloat16, 1e-3),
          .segments = tokens::equal_segments(tokens / sequence, sequence, bench.device())};
}

// One back end on one set of operands. Call backward() after forward(); it may be called repeatedly.
class Run {
 public:
  virtual ~Run() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;
};

// Calls it as the program does, with its key-value heads and layouts.
template <bool deterministic>
class ProgramRun final : public Run {
 public:
  explicit ProgramRun(Operands operands) : in_(std::move(operands)) {}
  void forward() override {
    attention::attend(
        {.q = in_.q, .k = in_.k, .v = in_.v, .documents = in_.segments, .deterministic = deterministic},
        saved_);
  }
  void backward() override { attention::attend_backward(in_.dout, saved_); }

 private:
  Operands in_;
  attention::Saved saved_;
};

// The operands of ATen's attention: [documents, heads, sequence, head_dim], views of [documents, sequence,
// heads, head_dim], with a key-value head for each head. The necessary copies are not measured.
class AtenRun : public Run {
 public:
  explicit AtenRun(const Operands& in) {
    const int64_t heads = in.q.size(1);
    q_ = batched(in.q.contiguous(), in.segments);
    k_ = batched(in.k.repeat_interleave(heads / in.k.size(1), 1), in.segments);
    v_ = batched(in.v.repeat_interleave(heads / in.v.size(1), 1), in.segments);
    dout_ = batched(in.dout, in.segments);
  }

 protected:
  static Tensor batched(const Tensor& x, const tokens::Segments& segments) {
    return x.view({segments.documents(), segments.longest, x.size(1), x.size(2)}).transpose(1, 2);
  }
  Tensor q_, k_, v_, dout_, out_, logsumexp_, seed_, offset_;
};

class CudnnRun final : public AtenRun {
 public:
  using AtenRun::AtenRun;
  void forward() override {
    auto result = at::_scaled_dot_product_cudnn_attention(q_, k_, v_, /*attn_bias=*/std::nullopt,
                                                          /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                                          /*is_causal=*/true);
    out_ = std::get<0>(result);
    logsumexp_ = std::get<1>(result);
    seed_ = std::get<6>(result);
    offset_ = std::get<7>(result);
  }
  void backward() override {
    at::_scaled_dot_product_cudnn_attention_backward(
        dout_, q_, k_, v_, out_, logsumexp_, seed_, offset_, /*attn_bias=*/Tensor(), /*cum_seq_q=*/Tensor(),
        /*cum_seq_k=*/Tensor(), q_.size(2), k_.size(2), /*dropout_p=*/0.0, /*is_causal=*/true);
  }
};

class FlashRun final : public AtenRun {
 public:
  using AtenRun::AtenRun;
  void forward() override {
    auto result = at::_scaled_dot_product_flash_attention(q_, k_, v_, /*dropout_p=*/0.0, /*is_causal=*/true);
    out_ = std::get<0>(result);
    logsumexp_ = std::get<1>(result);
    seed_ = std::get<6>(result);
    offset_ = std::get<7>(result);
  }
  void backward() override {
    at::_scaled_dot_product_flash_attention_backward(
        dout_, q_, k_, v_, out_, logsumexp_, /*cum_seq_q=*/Tensor(), /*cum_seq_k=*/Tensor(), q_.size(2),
        k_.size(2), /*dropout_p=*/0.0, /*is_causal=*/true, seed_, offset_);
  }
};

class CpuFlashRun final : public AtenRun {
 public:
  using AtenRun::AtenRun;
  void forward() override {
    std::tie(out_, logsumexp_) = at::_scaled_dot_product_flash_attention_for_cpu(q_, k_, v_, 0.0, true);
  }
  void backward() override {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(dout_, q_, k_, v_, out_, logsumexp_, 0.0, true);
  }
};

struct BackEnd {
  std::string name;
  std::unique_ptr<Run> (*make)(const Operands& operands);
};

template <class Kind>
std::unique_ptr<Run> make(const Operands& operands) {
  return std::make_unique<Kind>(operands);
}

std::vector<BackEnd> back_ends(at::Device device) {
  std::vector<BackEnd> result = {{"pptrain", make<ProgramRun<true>>},
                                 {"pptrain, fastest", make<ProgramRun<false>>}};
  if (device.is_cpu()) {
    result.push_back({"aten flash", make<CpuFlashRun>});
  } else {
    result.push_back({"aten cudnn", make<CudnnRun>});
    result.push_back({"aten flash", make<FlashRun>});
  }
  return result;
}

// Operations of one GEMM over all heads: a row sees half of its sequence on average.
double product_flops(const Sizes& sizes, int64_t sequence) {
  return static_cast<double>(sizes.max_rows() * sequence) * static_cast<double>(sizes.heads * sizes.head_dim);
}

// Two GEMMs forward; five backward, since the scores are recomputed.
void measure_back_end(Bench& bench, Rows& rows, const BackEnd& back_end, int64_t sequence) {
  std::vector<std::unique_ptr<Run>> sets;
  const auto run = [&](int64_t i) -> Run& { return *sets[static_cast<size_t>(i) % sets.size()]; };
  const auto add = [&](const char* pass, double products, const std::function<void(int64_t)>& work) {
    rows.add({{"name", back_end.name},
              {"pass", pass},
              {"sequence", sequence},
              {"tokens", bench.sizes().max_rows()}},
             [&](Json& row) {
               while (sets.size() < 2) sets.push_back(back_end.make(make_operands(bench, sequence)));
               for (const auto& set : sets) set->forward();
               const Timing timing = bench.measure(work);
               row["flops"] = products * product_flops(bench.sizes(), sequence);
               put(row, timing);
               row["flops_per_s"] = products * product_flops(bench.sizes(), sequence) / timing.seconds;
             });
  };
  add("forward", 2, [&](int64_t i) { run(i).forward(); });
  add("backward", 5, [&](int64_t i) { run(i).backward(); });
}

}  // namespace

void measure_attention(Bench& bench, Rows& rows) {
  for (const int64_t sequence : bench.sizes().sequences)
    for (const BackEnd& back_end : back_ends(bench.device()))
      measure_back_end(bench, rows, back_end, sequence);
}

}  // namespace pptrain::bench
